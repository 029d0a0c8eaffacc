"use strict";
// The figures of a report: specifications that carry their own rows, drawn when they become visible.

const NARROW = 480, WIDEST_LABEL = 80; // pixels

// Draw one figure with the theme and the width of its element.
async function drawFigure(element, figure, outline) {
  const dark = document.documentElement.dataset.theme === "dark";
  const theme = outline.themes[dark ? "dark" : "light"];
  const { usermeta, ...spec } = figure.spec;
  let margin = (usermeta && usermeta.margin) || 0;
  if (spec.layer && spec.layer.some((layer) => layer.name === "labels")) {
    // On a narrow screen long names at the ends of lines would leave no space for the lines: the legend has them, too.
    if (margin > WIDEST_LABEL && element.clientWidth < NARROW) spec.layer = spec.layer.filter((layer) => layer.name !== "labels");
    margin = 0; // Vega itself leaves the space that texts need
  }
  const full = {
    ...spec, width: "container", height: figure.height, autosize: { type: "fit-x", contains: "padding" },
    padding: { left: 2, top: 6, bottom: 2, right: 8 + margin }, config: { ...theme, background: "transparent" },
  };
  const options = {
    renderer: "svg", ast: true, logLevel: 1, actions: false, defaultStyle: false, tooltip: { disableDefaultStyle: true },
  };
  const result = await vegaEmbed(element, full, options);
  if (element.view) element.view.finalize();
  element.view = result.view;
  element.setAttribute("aria-label", figure.alt); // Vega has replaced it
  // The label is for screen readers: the parts of the figure would only repeat it.
  const svg = element.querySelector("svg");
  if (svg) svg.setAttribute("aria-hidden", "true");
}

// Draw all figures: those at the top at once, the others when they are near the screen.
async function fillFigures(outline) {
  const elements = [...document.querySelectorAll("[data-figure]")];
  const drawn = new Set();
  const show = (element) => {
    drawn.add(element);
    return drawFigure(element, outline.figures[element.dataset.figure], outline);
  };
  const hero = elements.filter((element) => element.dataset.figure.startsWith("hero-"));
  await Promise.all(hero.map(show));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      seen.unobserve(entry.target);
      show(entry.target);
    }
  }, { rootMargin: "300px" });
  elements.filter((element) => !drawn.has(element)).forEach((element) => seen.observe(element));
  return {
    redraw: () => Promise.all([...drawn].map(show)),
    // One after the other, while the browser has nothing else to do.
    drawAll: async () => {
      for (const element of elements) {
        if (drawn.has(element)) continue;
        await new Promise((go) => (window.requestIdleCallback || setTimeout)(go));
        if (!drawn.has(element)) await show(element);
      }
    },
  };
}
