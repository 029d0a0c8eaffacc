"""How far the numbers can be trusted: arithmetic, bias, error bars, known dimensions."""
