"""Statistics: values made from rows that add, `of(a) + of(b) == of(a followed by b)`."""
