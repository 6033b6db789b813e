"""Memory that CPU backends keep between calls."""

import threading

import torch

from mmattn.ops import landmark_attention
from mmattn.ops.common import workspace
from tools.benchmark.inputs import make_landmark_inputs
from tools.benchmark.tolerances import run_with_grads


def test_calls_in_and_outside_inference_mode():
    inputs = make_landmark_inputs(E=6, B=3)
    workspace._memory.tensors.clear()
    with torch.inference_mode():
        expected = landmark_attention(*inputs)
    assert torch.equal(landmark_attention(*inputs), expected)
    assert torch.equal(run_with_grads(landmark_attention, inputs)[0], expected)


def test_each_thread_has_its_own_memory():
    addresses = []

    def take():
        addresses.append(workspace.scratch('test', 4, like=torch.empty(0)))

    take()
    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    assert addresses[0].data_ptr() != addresses[1].data_ptr()
