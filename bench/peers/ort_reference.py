#!/usr/bin/env python3
"""Runs a streaming ONNX model one stream at a time in onnxruntime: what every stream should get, whoever else is served.

    ort_reference.py MODEL --inputs DIR --out DIR [--fix NAME=VALUE].. [--state IN=OUT[@AXIS]].. [--lane NAME=AXIS]..

- `DIR/NAME.npy` holds each input that is neither fixed nor a state, with axes [stream, turn, ...] or, fed to every
  stream, [turn, ...]; what follows is one seat's value without the lane axis. A state starts as zeros and is fed back.
- Written: `NAME.npy` for each output that is not a state, with axes [stream, turn, ...] likewise.
- Every call has a lane axis of extent 1, and a stream's calls end before the next stream's begin.
- The lane axis is 0 unless `--lane` says otherwise; a state's, the only axis without a fixed extent unless @AXIS does.

On stdout one JSON object {"peer","version","model","streams","turns","outputs":{NAME: shape}}. Exit status 0 done, 1
onnxruntime failed, 2 the arguments or the files do not fit the model. Needs onnxruntime and numpy.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort

DTYPES = {
    "tensor(float)": np.float32,
    "tensor(double)": np.float64,
    "tensor(float16)": np.float16,
    "tensor(int8)": np.int8,
    "tensor(int16)": np.int16,
    "tensor(int32)": np.int32,
    "tensor(int64)": np.int64,
    "tensor(uint8)": np.uint8,
    "tensor(bool)": np.bool_,
}


class Refused(Exception):
    """The arguments or the files do not fit the model."""


class Value:
    """One input of the model: its name, dtype and declared shape, a `None` for every extent that is not fixed."""

    def __init__(self, declared):
        if declared.type not in DTYPES:
            raise Refused(f"input `{declared.name}` is {declared.type}, accepted are {', '.join(DTYPES)}")
        self.name = declared.name
        self.dtype = np.dtype(DTYPES[declared.type])
        self.shape = [dim if isinstance(dim, int) else None for dim in declared.shape]

    def lane_axis(self, axis):
        """`axis` if it can have extent 1."""
        if not 0 <= axis < len(self.shape):
            raise Refused(f"lane axis {axis} of `{self.name}`: its shape {self.shape} has {len(self.shape)} axes")
        if self.shape[axis] not in (None, 1):
            raise Refused(f"lane axis {axis} of `{self.name}` has extent {self.shape[axis]}, accepted is 1 or any")
        return axis

    def free_axis(self):
        """The only axis without a fixed extent."""
        free = [axis for axis, dim in enumerate(self.shape) if dim is None]
        if len(free) != 1:
            raise Refused(f"state `{self.name}` of shape {self.shape} has {len(free)} axes that may hold lanes: add @AXIS")
        return free[0]


def split(option, text):
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise Refused(f"{option} `{text}` is not of the form NAME=VALUE")
    return name, value


def axis_of(option, text):
    if not text.isdecimal():
        raise Refused(f"{option}: axis `{text}` is not a number from 0")
    return int(text)


def fixed_value(value, text):
    """`text` as the whole of the input `value`, its free extents 1."""
    try:
        number = np.array(float(text) if value.dtype.kind == "f" else int(text), value.dtype)
    except (ValueError, OverflowError):
        raise Refused(f"--fix {value.name}=`{text}` is not a number of dtype {value.dtype}") from None
    return np.full([1 if dim is None else dim for dim in value.shape], number, value.dtype)


def initial_state(value, axis):
    """Zeros for one lane of the state `value`."""
    value.lane_axis(axis)
    shape = [1 if at == axis else dim for at, dim in enumerate(value.shape)]
    if None in shape:
        raise Refused(f"state `{value.name}` of shape {value.shape}: axis {shape.index(None)} has no fixed extent either")
    return np.zeros(shape, value.dtype)


def stream_input(value, axis, folder):
    """The rows of `value`, with axes [stream or 1, turn, ...seat with its lane axis of extent 1]."""
    path = folder / f"{value.name}.npy"
    try:
        rows = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise Refused(f"input `{value.name}`, neither fixed nor a state, is read from {path}: {error}") from None
    if rows.dtype != value.dtype:
        raise Refused(f"{path} holds {rows.dtype}, the model takes {value.dtype}")
    value.lane_axis(axis)
    rank = len(value.shape)
    if rows.ndim == rank:
        rows = rows[np.newaxis]
    if rows.ndim != rank + 1:
        raise Refused(f"{path} has shape {rows.shape}, accepted are {rank + 1} axes [stream, turn, ...] or {rank}")
    rows = np.expand_dims(rows, 2 + axis)
    for at, (found, dim) in enumerate(zip(rows.shape[2:], value.shape)):
        if dim not in (None, found):
            raise Refused(f"{path}: axis {at} of `{value.name}` is {found} there, the model takes {dim}")
    return rows


def common_extent(what, extents):
    """The one extent of all, extents of 1 aside."""
    found = {extent for extent in extents.values() if extent != 1} or {1}
    if len(found) > 1:
        raise Refused(f"inputs differ in their number of {what}: {extents}")
    return found.pop()


def run(session, feeds_of, states, lane_axes, streams, turns):
    """Every stream alone, from zeros. `states` maps an input to (output, zeros); returns {output: [stream, turn, ...]}."""
    names = [output.name for output in session.get_outputs()]
    state_outputs = {output for output, _ in states.values()}
    written = {}
    for stream in range(streams):
        state = {name: zeros for name, (_, zeros) in states.items()}
        for turn in range(turns):
            answers = dict(zip(names, session.run(names, {**feeds_of(stream, turn), **state})))
            state = {name: answers[output] for name, (output, _) in states.items()}
            for name in names:
                if name in state_outputs:
                    continue
                answer, axis = answers[name], lane_axes.get(name, 0)
                if axis >= answer.ndim or answer.shape[axis] != 1:
                    raise Refused(f"output `{name}` has shape {answer.shape}: axis {axis} is not one lane's (see --lane)")
                answer = answer.take(0, axis)
                if name not in written:
                    written[name] = np.empty((streams, turns, *answer.shape), answer.dtype)
                if answer.shape != written[name].shape[2:]:
                    raise Refused(f"output `{name}` changes shape in turn {turn} of stream {stream}: now {answer.shape}")
                written[name][stream, turn] = answer
    return written


def reference(args):
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3  # errors; the warnings are about the exporters' leftovers
    session = ort.InferenceSession(str(args.model), options, providers=["CPUExecutionProvider"])
    inputs = {declared.name: Value(declared) for declared in session.get_inputs()}
    outputs = [output.name for output in session.get_outputs()]

    def known(option, name, names):
        if name not in names:
            raise Refused(f"{option}: `{name}` is none of the model's {', '.join(names)}")
        return name

    def unused(option, name, taken):
        if name in taken:
            raise Refused(f"{option}: `{name}` was given before")
        return name

    constants, states, lane_axes = {}, {}, {}
    for text in args.fix:
        name, value = split("--fix", text)
        known("--fix", unused("--fix", name, constants), inputs)
        constants[name] = fixed_value(inputs[name], value)
    for text in args.state:
        name, output = split("--state", text)
        output, at, axis = output.rpartition("@") if "@" in output else (output, "", "")
        value = inputs[known("--state", unused("--state", name, {**constants, **states}), inputs)]
        known("--state", unused("--state", output, [taken for taken, _ in states.values()]), outputs)
        states[name] = (output, initial_state(value, axis_of("--state", axis) if at else value.free_axis()))
    for text in args.lane:
        name, axis = split("--lane", text)
        known("--lane", unused("--lane", name, lane_axes), [*inputs, *outputs])
        lane_axes[name] = axis_of("--lane", axis)

    rows = {
        name: stream_input(value, lane_axes.get(name, 0), args.inputs)
        for name, value in inputs.items()
        if name not in constants and name not in states
    }
    if not rows:
        raise Refused("every input is fixed or a state: nothing says how many turns to run")
    streams = common_extent("streams", {name: value.shape[0] for name, value in rows.items()})
    turns = {name: value.shape[1] for name, value in rows.items()}
    if len(set(turns.values())) > 1 or 0 in turns.values() or streams == 0:
        raise Refused(f"inputs differ in their number of turns, or are empty: {turns} turns, {streams} streams")
    turns = next(iter(turns.values()))

    def feeds_of(stream, turn):
        return {**constants, **{name: value[stream if len(value) > 1 else 0, turn] for name, value in rows.items()}}

    written = run(session, feeds_of, states, lane_axes, streams, turns)
    args.out.mkdir(parents=True, exist_ok=True)
    for name, values in written.items():
        np.save(args.out / f"{name}.npy", values)
    return {
        "peer": "onnxruntime",
        "version": ort.__version__,
        "model": str(args.model),
        "streams": streams,
        "turns": turns,
        "outputs": {name: list(values.shape) for name, values in written.items()},
    }


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, help="ONNX file")
    parser.add_argument("--inputs", required=True, type=Path, metavar="DIR", help="holds NAME.npy [stream, turn, ...]")
    parser.add_argument("--out", required=True, type=Path, metavar="DIR", help="made if need be")
    parser.add_argument("--fix", action="append", default=[], metavar="NAME=VALUE", help="constant input")
    parser.add_argument("--state", action="append", default=[], metavar="IN=OUT[@AXIS]", help="state and its lane axis")
    parser.add_argument("--lane", action="append", default=[], metavar="NAME=AXIS", help="lane axis of another tensor")
    args = parser.parse_args(argv)
    try:
        report = reference(args)
    except Refused as error:
        print(f"ort_reference: {error}", file=sys.stderr)
        return 2
    except Exception as error:  # onnxruntime's errors have no base of their own
        print(f"ort_reference: {args.model}: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
