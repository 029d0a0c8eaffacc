"""The scripts that draw the charts of a page. They are part of the page, so that it works without a network."""

from __future__ import annotations

from functools import cache


@cache
def vega_script() -> str:
    """Return Vega, Vega-Lite and vega-embed as one script that sets window.vegaEmbed; vl-convert carries them."""
    import vl_convert

    bundle = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # its stub forgets the default
    # A script must contain neither </script nor <!--; both can be written with an escape inside a string.
    return scoped(bundle.replace("</script", "<\\/script").replace("<!--", "<\\!--"))


def scoped(script: str) -> str:
    """Return a script in a scope of its own: Vega's bundle declares one-letter names."""
    return f"(() => {{\n{script}\n}})();"
