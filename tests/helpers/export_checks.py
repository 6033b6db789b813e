"""Exports of modules, run by torch.export and by ONNX Runtime."""

import io

import torch
from torch import Tensor, nn

import mmattn.export


def decomposed(module: nn.Module, args: tuple, dynamic_shapes=None):
    """Return the exported module in PyTorch's operators alone."""
    program = torch.export.export(module, args, dynamic_shapes=dynamic_shapes)
    program = program.run_decompositions(mmattn.export.decompositions())
    assert not own_operators(program)
    return program.module()


def own_operators(program: torch.export.ExportedProgram) -> list[str]:
    """Return the names of our operators in a program."""
    targets = [str(node.target) for node in program.graph.nodes]
    return [target for target in targets if 'mmattn' in target]


class OnnxSession:
    """Run a module that `torch.onnx.export` wrote."""

    def __init__(self, module: nn.Module, args: tuple, dynamic_shapes=None):
        import onnxruntime

        file = io.BytesIO()
        torch.onnx.export(
            module,
            args,
            file,
            dynamo=True,
            opset_version=20,
            dynamic_shapes=dynamic_shapes,
            verbose=False,
        )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.file = file.getvalue()
        self.session = onnxruntime.InferenceSession(self.file, options)

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        names = [x.name for x in self.session.get_inputs()]
        feed = {n: x.numpy() for n, x in zip(names, tensors, strict=True)}
        return [torch.from_numpy(out) for out in self.session.run(None, feed)]
