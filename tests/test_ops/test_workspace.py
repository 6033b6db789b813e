"""Memory that CPU backends keep between calls."""

import threading

import pytest
import torch

from mmattn.ops import landmark_attention, masked_attention, workspace
from tools.benchmark.inputs import make_landmark_inputs, make_masked_inputs
from tools.benchmark.tolerances import run_with_grads


def landmarks(seed=0):
    return landmark_attention, make_landmark_inputs(E=6, B=3, seed=seed)


def dense_mask(seed=0):
    q, k, v, _, alpha = make_masked_inputs(
        grid=(7, 5), num_special=1, alpha=True, seed=seed
    )
    return (
        lambda q, k, v, alpha: masked_attention(
            q, k, v, (7, 5), num_special=1, alpha=alpha
        ),
        [q, k, v, alpha],
    )


every_call = pytest.mark.parametrize('call', [landmarks, dense_mask])


@every_call
def test_results_survive_the_next_call(call):
    operator, inputs = call()
    out, grads = run_with_grads(operator, inputs)
    kept = [x.clone() for x in (out, *grads)]
    run_with_grads(operator, call(seed=1)[1])
    assert all(map(torch.equal, (out, *grads), kept))


@every_call
def test_calls_in_and_outside_inference_mode(call):
    operator, inputs = call()
    workspace._memory.tensors.clear()
    with torch.inference_mode():
        expected = operator(*inputs)
    assert torch.equal(operator(*inputs), expected)
    assert torch.equal(run_with_grads(operator, inputs)[0], expected)


def test_memory_is_kept_up_to_a_size_and_grows(monkeypatch):
    monkeypatch.setattr(workspace, 'KEPT_ELEMENTS', 12)
    small = workspace.scratch('test', 2, 3, like=torch.empty(0))
    large = workspace.scratch('test', 3, 4, like=torch.empty(0))
    assert large.shape == (3, 4) and small.data_ptr() != large.data_ptr()
    again = workspace.scratch('test', 2, 3, like=torch.empty(0))
    assert again.data_ptr() == large.data_ptr()
    others = [
        workspace.scratch('test', 13, like=torch.empty(0)),
        workspace.scratch('test', 2, like=torch.empty(0).double()),
        workspace.scratch('other', 2, like=torch.empty(0)),
    ]
    assert large.data_ptr() not in [x.data_ptr() for x in others]


def test_each_thread_has_its_own_memory():
    addresses = []

    def take():
        addresses.append(workspace.scratch('test', 4, like=torch.empty(0)))

    take()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert addresses[0].data_ptr() != addresses[1].data_ptr()


@every_call
def test_memory_of_any_size(monkeypatch, call):
    monkeypatch.setattr(workspace, 'KEPT_ELEMENTS', 0)
    operator, inputs = call()
    reference = [x.detach() for x in inputs]
    out = operator(*reference)
    monkeypatch.undo()
    assert torch.equal(operator(*reference), out)
