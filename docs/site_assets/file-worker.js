// Search from a folder: browsers refuse workers on file: pages, so the search script runs in a hidden frame instead.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inner = this.frame.contentWindow;
      inner.postMessage = (data) => this.onmessage?.({ data });
      this.ready = new Promise((resolve) => {
        const script = this.frame.contentDocument.createElement("script");
        script.src = url;
        script.onload = () => resolve(inner);
        script.onerror = (event) => this.onerror?.(event);
        this.frame.contentDocument.body.append(script);
      });
    }

    postMessage(data) {
      this.ready.then((inner) => inner.onmessage?.({ data: structuredClone(data) }));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
