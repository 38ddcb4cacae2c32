"""The model: its fixed front end, its learned part, and its ONNX graph.

    context 128 | input 512 -> 4 windows of 256, hop 128 -> spectra -> 40 bands -> log      (fixed)
                            -> convolution over time, twice -> GRU 64 -> speech probability (learned)

The front end is the same for every level of training, so that training sees it as data: `features`
computes it with an FFT, the ONNX graph as one convolution with the windowed sines and cosines.
"""

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper

from speech import FRAME, RATE

WINDOW = 256
"""Samples of a short-time spectrum: 16 ms."""
HOP = 128
"""Samples from one spectrum to the next; a turn has `FRAME / HOP` of them."""
CONTEXT = WINDOW - HOP
"""Samples that a turn keeps of the one before: its first spectrum reaches back that far."""
STEPS = FRAME // HOP
BINS = 96
"""Bins 1 to 96, up to 6 kHz: voicing and formants are below, and bin 0 is the microphone's offset."""
BANDS = 40
CHANNELS = 64
HIDDEN = 64
# Added to a band's power before the logarithm. A tone of full scale has a power of 4096, so that it
# lies 86 dB below: under every sound the model should hear, over the rounding of f32.
FLOOR = 1e-5


def window():
    """The periodic Hann window."""
    return np.hanning(WINDOW + 1)[:WINDOW]


def band_weights():
    """`[BANDS, BINS]`: triangles equally spaced in mel from 60 to 6000 Hz, none narrower than a bin."""
    mel = lambda hertz: 2595 * np.log10(1 + hertz / 700)
    edges = 700 * (10 ** (np.linspace(mel(60), mel(6000), BANDS + 2) / 2595) - 1)
    hertz = np.arange(1, BINS + 1) * RATE / WINDOW
    bin_hertz = RATE / WINDOW
    left = np.maximum(edges[1:-1] - edges[:-2], bin_hertz)[:, None]
    right = np.maximum(edges[2:] - edges[1:-1], bin_hertz)[:, None]
    offset = hertz[None] - edges[1:-1, None]
    return np.maximum(0, 1 - np.where(offset < 0, -offset / left, offset / right))


def features(pcm):
    """`[turns, BANDS, STEPS]` f32 log band powers of whole frames of i16 samples, zeros before the start."""
    turns = len(pcm) // FRAME
    samples = np.concatenate([np.zeros(CONTEXT), pcm[:turns * FRAME] / 32768]).astype(np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    power = np.square(np.abs(np.fft.rfft(windows * window(), axis=1)[:, 1:BINS + 1]))
    bands = np.log(power @ band_weights().T + FLOOR).astype(np.float32)
    return bands.reshape(turns, STEPS, BANDS).transpose(0, 2, 1)


class Net(torch.nn.Module):
    """The learned part, from `[batch, turns, BANDS, STEPS]` features to `[batch, turns]` logits."""

    def __init__(self, mean, deviation):
        """`mean` and `deviation`, `[BANDS]`, bring the features near zero mean and unit variance."""
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(mean, dtype=torch.float32))
        self.register_buffer("deviation", torch.as_tensor(deviation, dtype=torch.float32))
        # Two convolutions over a turn's spectra, written as products because torch is faster so:
        # 3 spectra wide, which leaves 2 positions, then 2 wide, which leaves one.
        self.near = torch.nn.Linear(BANDS * 3, CHANNELS)
        self.turn = torch.nn.Linear(CHANNELS * 2, CHANNELS)
        self.cell = torch.nn.GRU(CHANNELS, HIDDEN, batch_first=True)
        self.out = torch.nn.Linear(HIDDEN, 1)

    def forward(self, features):
        batch, turns = features.shape[:2]
        x = (features.flatten(0, 1) - self.mean[:, None]) / self.deviation[:, None]
        x = torch.relu(self.near(x.unfold(2, 3, 1).transpose(1, 2).flatten(2)))
        x = torch.relu(self.turn(x.transpose(1, 2).flatten(1)))
        x, _ = self.cell(x.unflatten(0, (batch, turns)))
        return self.out(x).squeeze(-1)


def to_onnx(net):
    """The whole model as ONNX: `input`, `context`, `state` -> `output`, `next_context`, `next_state`."""
    weight = {name: value.detach().double().numpy() for name, value in net.state_dict().items()}
    phase = 2 * np.pi * np.outer(np.arange(1, BINS + 1), np.arange(WINDOW)) / WINDOW
    # The normalisation is linear, so that the first learned convolution takes it in.
    near = weight["near.weight"].reshape(CHANNELS, BANDS, 3) / weight["deviation"][:, None]
    near_bias = weight["near.bias"] - (near * weight["mean"][:, None]).sum(axis=(1, 2))
    # torch orders the gates reset, update, new; ONNX update, reset, hidden.
    gates = lambda value: value.reshape(3, HIDDEN, -1)[[1, 0, 2]].reshape(1, 3 * HIDDEN, -1)
    tensors = {
        "fourier": np.concatenate([np.cos(phase), np.sin(phase)])[:, None] * window(),
        "bands": band_weights()[:, :, None],
        "floor": np.array(FLOOR),
        "near_weight": near,
        "near_bias": near_bias,
        "turn_weight": weight["turn.weight"].reshape(CHANNELS, CHANNELS, 2),
        "turn_bias": weight["turn.bias"],
        "gru_input": gates(weight["cell.weight_ih_l0"]),
        "gru_hidden": gates(weight["cell.weight_hh_l0"]),
        "gru_bias": np.concatenate([gates(weight["cell.bias_ih_l0"]), gates(weight["cell.bias_hh_l0"])], axis=1)[..., 0],
        "out_weight": weight["out.weight"].T,
        "out_bias": weight["out.bias"],
    }
    integers = {"axis_0": [0], "axis_1": [1], "last": [FRAME - CONTEXT], "end": [FRAME], "halves": [BINS, BINS]}
    initializers = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in tensors.items()]
    initializers += [numpy_helper.from_array(np.array(value, np.int64), name) for name, value in integers.items()]
    node = helper.make_node
    nodes = [
        node("Concat", ["context", "input"], ["samples"], "samples", axis=1),
        node("Slice", ["input", "last", "end", "axis_1"], ["next_context"], "next_context"),
        node("Unsqueeze", ["samples", "axis_1"], ["signal"], "signal"),
        node("Conv", ["signal", "fourier"], ["spectrum"], "spectrum", strides=[HOP]),
        node("Mul", ["spectrum", "spectrum"], ["squares"], "squares"),
        node("Split", ["squares", "halves"], ["real", "imaginary"], "parts", axis=1),
        node("Add", ["real", "imaginary"], ["power"], "power"),
        node("Conv", ["power", "bands"], ["band_power"], "band_power"),
        node("Add", ["band_power", "floor"], ["band_floored"], "band_floored"),
        node("Log", ["band_floored"], ["band_log"], "band_log"),
        node("Conv", ["band_log", "near_weight", "near_bias"], ["near"], "near"),
        node("Relu", ["near"], ["near_relu"], "near_relu"),
        node("Conv", ["near_relu", "turn_weight", "turn_bias"], ["turn"], "turn"),
        node("Relu", ["turn"], ["turn_relu"], "turn_relu"),
        node("Transpose", ["turn_relu"], ["sequence"], "sequence", perm=[2, 0, 1]),
        node("Unsqueeze", ["state", "axis_0"], ["hidden"], "hidden"),
        node("GRU", ["sequence", "gru_input", "gru_hidden", "gru_bias", "", "hidden"], ["", "next_hidden"], "gru",
             hidden_size=HIDDEN, linear_before_reset=1),
        node("Squeeze", ["next_hidden", "axis_0"], ["next_state"], "next_state"),
        node("Gemm", ["next_state", "out_weight", "out_bias"], ["logit"], "logit"),
        node("Sigmoid", ["logit"], ["output"], "output"),
    ]
    value = lambda name, size: helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
    graph = helper.make_graph(
        nodes, "vad",
        [value("input", FRAME), value("context", CONTEXT), value("state", HIDDEN)],
        [value("output", 1), value("next_context", CONTEXT), value("next_state", HIDDEN)],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], producer_name="lanes models/vad")
    model.ir_version = 8
    helper.set_model_props(model, {"sample_rate": str(RATE), "licence": "MIT OR Apache-2.0"})
    onnx.checker.check_model(model, full_check=True)
    return model
