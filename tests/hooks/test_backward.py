"""The gradient tape: activations and gradients of the same forward, at sites, linear maps and the embedding."""

from __future__ import annotations

import pytest
import torch

from anisoscope.errors import CaptureError
from anisoscope.hooks.backward import (
    TapeTargets,
    differentiable,
    input_embedding,
    reader_and_writer,
    record_tape,
    require_gradients,
    run_model,
)
from anisoscope.hooks.find import find_layout
from anisoscope.records import Site
from tests.captures import captured
from tests.tiny_models import LAYERS, build


@pytest.mark.parametrize("name", ["gpt2", "albert"])
def test_the_tape_holds_the_tensors_that_a_capture_sees(name: str) -> None:
    model, batch = build(name)
    layout = find_layout(model, batch)
    sites = (Site("embed"), *(Site("resid", layer) for layer in range(LAYERS)))
    expected, _ = captured(model, batch, ["embed", "resid"], layout)
    with torch.no_grad(), record_tape(model, layout, TapeTargets(sites)) as tape:
        for _ in range(2):  # each forward starts a new tape
            run_model(model, batch, tape)
    assert list(tape.outputs) == [str(site) for site in sites]
    for site in sites:
        assert torch.equal(tape.rows(str(site), tape.outputs[str(site)]), expected[str(site)])


def test_linear_maps_and_the_embedding_are_recorded_by_the_name_of_their_weight() -> None:
    model, batch = build("gpt2")
    layout = find_layout(model, batch)
    reader, writer = reader_and_writer(model, layout.stacks[0], 1)
    table = input_embedding(model)
    assert (reader, writer) == ("weight.transformer.h.1.mlp.c_fc", "weight.transformer.h.1.mlp.c_proj")
    assert table == "weight.transformer.wte"
    assert reader is not None
    assert writer is not None
    with torch.no_grad(), record_tape(model, layout, TapeTargets((), (reader, writer), table)) as tape:
        run_model(model, batch, tape)
    assert list(tape.inputs) == [reader, writer]
    assert set(tape.outputs) == {reader, writer, table}


def test_a_site_that_the_loss_does_not_depend_on_is_an_error() -> None:
    model, batch = build("gpt2")
    layout = find_layout(model, batch)
    targets = TapeTargets((Site("resid", 0), Site("resid", 2)))
    with differentiable(model), record_tape(model, layout, targets) as tape:
        run_model(model, batch, tape)
        loss = tape.outputs["resid.0"].square().sum()
        (gradient,) = torch.autograd.grad(loss, [tape.outputs["resid.0"]])
        assert torch.equal(gradient, 2 * tape.outputs["resid.0"])
        with pytest.raises(CaptureError, match=r"resid\.2: no gradient, because the loss does not depend on it"):
            require_gradients(tape, targets, ["resid.0"])
