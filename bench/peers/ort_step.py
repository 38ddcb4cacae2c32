#!/usr/bin/env python3
"""Times onnxruntime at a batch of streams: every stream in every turn, states fed back, as `tract-peer step` times tract.

Prints one JSON object with the keys of `tract-peer step` that apply, and `threads`. Nothing of serving is timed: no queue,
no stacking of rows, no stream that comes or goes. Needs onnxruntime and numpy.
"""

import argparse
import json
import sys
import time

import numpy as np
import onnxruntime as ort

BATCH = "batch"  # stands for the seats of a turn in the shapes below

# Per model family: the audio of one turn in ms; new data each turn; states, each with the output it comes from; scalars,
# left out where an export has folded them in. The Rust peer holds the same table in tract-peer/src/preset.rs.
PRESETS = {
    "silero": {
        "frame_ms": 32.0,
        "frames": {"input": (BATCH, 576)},
        "states": {"state": ("stateN", (2, BATCH, 128))},
        "constants": {"sr": 16_000},
    },
    "flashvad": {
        "frame_ms": 10.0,
        "frames": {"feature": (BATCH, 1, 43)},
        "states": {
            "recurrent": ("next_recurrent", (1, BATCH, 64)),
            "cache_0": ("next_cache_0", (BATCH, 64, 2)),
            "cache_1": ("next_cache_1", (BATCH, 64, 4)),
            "cache_2": ("next_cache_2", (BATCH, 64, 8)),
            "cache_3": ("next_cache_3", (BATCH, 64, 16)),
        },
        "constants": {},
    },
}

ROUND = 16  # turns of generated input; the run goes round them, so that making input is not timed
TURNS_MIN = 5


class Turns:
    """A session, and what its next turn is fed."""

    def __init__(self, model, preset, batch, threads):
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3  # errors; the warnings are about the exporters' leftovers
        self.session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self.outputs = [output.name for output in self.session.get_outputs()]
        self.answers = {}
        self.taken = 0

        def shape(dims):
            return tuple(batch if dim == BATCH else dim for dim in dims)

        random = np.random.default_rng(0)
        self.round = [
            {name: random.uniform(-0.1, 0.1, shape(dims)).astype(np.float32) for name, dims in preset["frames"].items()}
            for _ in range(ROUND)
        ]
        self.state_from = {name: output for name, (output, _) in preset["states"].items()}
        self.states = {name: np.zeros(shape(dims), np.float32) for name, (_, dims) in preset["states"].items()}
        inputs = {value.name for value in self.session.get_inputs()}
        self.constants = {
            name: np.array(value, np.int64) for name, value in preset["constants"].items() if name in inputs
        }

    def take(self):
        frames = self.round[self.taken % ROUND]
        answers = self.session.run(self.outputs, {**frames, **self.constants, **self.states})
        self.answers = dict(zip(self.outputs, answers))
        self.states = {name: self.answers[output] for name, output in self.state_from.items()}
        self.taken += 1

    def run_for(self, seconds):
        """Takes turns until `seconds` are over and returns how long each took, in seconds."""
        start, samples = time.perf_counter(), []
        while len(samples) < TURNS_MIN or time.perf_counter() - start < seconds:
            turn = time.perf_counter()
            self.take()
            samples.append(time.perf_counter() - turn)
        return samples


def measure(model, preset_name, batch, seconds, threads):
    preset = PRESETS[preset_name]
    turns = Turns(model, preset, batch, threads)
    turns.run_for(seconds / 5)
    start, cpu_start = time.perf_counter(), time.process_time()
    samples = turns.run_for(seconds)
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    for name, answer in turns.answers.items():
        if batch not in answer.shape or not np.isfinite(answer).all():
            raise ValueError(f"output `{name}` has shape {answer.shape}, or a value that is not finite, for {batch} seats")

    def percentile(percent):
        return float(np.percentile(samples, percent, method="inverted_cdf")) * 1e6

    seats = len(samples) * batch
    return {
        "peer": "onnxruntime",
        "version": ort.__version__,
        "model": model,
        "preset": preset_name,
        "threads": threads,
        "batch": batch,
        "frame_ms": preset["frame_ms"],
        "turns": len(samples),
        "wall_s": wall,
        "turn_us": {"p50": percentile(50), "p90": percentile(90), "p99": percentile(99), "max": percentile(100)},
        "us_per_seat": wall * 1e6 / seats,
        "cpu_us_per_seat": cpu * 1e6 / seats,
        "realtime_streams": preset["frame_ms"] * 1e-3 * seats / wall,
    }


def positive(kind):
    def parse(text):
        value = kind(text)
        if not value > 0:  # also refuses NaN
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return value

    parse.__name__ = kind.__name__  # argparse names it when `kind` refuses
    return parse


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="ONNX file")
    parser.add_argument("--preset", required=True, choices=PRESETS)
    parser.add_argument("--batch", required=True, type=positive(int), help="seats of every turn")
    parser.add_argument("--seconds", required=True, type=positive(float), help="time to take samples for")
    parser.add_argument("--threads", default=1, type=positive(int), help="threads inside an op (1)")
    args = parser.parse_args()
    try:
        report = measure(args.model, args.preset, args.batch, args.seconds, args.threads)
    except Exception as error:  # onnxruntime's errors have no base of their own
        print(f"ort_step: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
