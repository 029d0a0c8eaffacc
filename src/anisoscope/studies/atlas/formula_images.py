"""Images of formulas, for a model that reads them: drawn with a seed, on the canvas that the model was trained on."""

from __future__ import annotations

import random
from pathlib import Path

from anisoscope.extras import needs

_SHAPES = (
    r"\frac{{{a}}}{{{b}}} = {c}",
    r"{a}^{{2}} + {b}^{{2}} = {c}^{{2}}",
    r"\sum_{{{a}=1}}^{{{b}}} {c}_{{{a}}}",
    r"\int_{{0}}^{{{d}}} f({a}) d{a}",
    r"\sqrt{{{a} + {d}}} = {b}",
    r"\alpha {a} + \beta {b} = {d}",
    r"({a} + {b})({a} - {b}) = {c}",
    r"f({a}) = {d} {a} + {b}",
)


def formulas(count: int, seed: int = 0) -> list[str]:
    """Return formulas in LaTeX: a few shapes with letters and digits drawn with a seed.

    >>> len(set(formulas(20)))
    20
    """
    draw = random.Random(seed)
    distinct: dict[str, None] = {}
    while len(distinct) < count:
        a, b, c = draw.sample("abcknpqtuvxyz", 3)
        distinct[_SHAPES[len(distinct) % len(_SHAPES)].format(a=a, b=b, c=c, d=draw.randint(2, 9))] = None
    return list(distinct)


def draw_formulas(files: list[Path], folder: Path, *, count: int, height: int, breadth: int, seed: int = 0) -> None:
    """Write one image per formula, and its LaTeX in a text file of the same name.

    Each formula is black on white, scaled to fit, in the middle of a black canvas: so was the model trained.

    Args:
        files: Not used; formulas are drawn.
        folder: Where to write.
        count: Images in all.
        height: Of the canvas, in pixels.
        breadth: Of the canvas, in pixels.
        seed: Of the draws.
    """
    with needs("matplotlib", "drawing formulas"):
        from matplotlib import rc_context
        from matplotlib.mathtext import math_to_image
    from PIL import Image, ImageOps

    for number, formula in enumerate(formulas(count, seed)):
        file = folder / f"{number:03}.png"
        with rc_context({"mathtext.fontset": "cm"}):
            math_to_image(f"${formula}$", str(file), dpi=200)
        with Image.open(file) as drawn:
            canvas = ImageOps.pad(drawn.convert("L"), (breadth, height), Image.Resampling.BILINEAR, color=0)
        canvas.save(file)
        file.with_suffix(".txt").write_text(formula, "utf-8")
