#!/usr/bin/env python3
"""Ours beside PyTorch on one GPU, in one run: turns of models and contractions, a ratio and its bar a line.

Both sides are graphs between two events of the device's clock, inputs and states on the device: of ours the commands of a
turn as `lanes bench --json` tells them, of PyTorch's a captured step whose new states are copied over the old ones. Each
round runs every pair once, ours first in one round and PyTorch's in the next; a ratio is PyTorch's time / ours within a
round, and the median of the rounds is what counts. States and inputs are random on both sides: zeros are multiplied faster.

PyTorch multiplies without TF32. Its nets have the shapes of ours and weights of their own: only time is compared.
"""

import argparse
import functools
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

SEATS = (1, 64, 1024, 4096)
ROWS = (1, 8, 32, 64, 128, 512)
SIZES = ((256, 256), (512, 2048), (1024, 4096))
PRODUCTS = 20  # in a row, each with weights of its own: what one takes is a part of that
WARM_UP, SAMPLES = 5, 50  # replays before the first that is timed, and timed ones: what `lanes bench` takes too
WIDTH_IN, WIDTH_OUT = 80, 256  # of the stacks of LSTM cells

PRECISIONS = ("f32", "bf16")
STACKS = {"lstm-3x512": (3, 512), "lstm-5x1024": (5, 1024)}
# What Silero's wrapper feeds: 64 samples of before and 512 new ones. The filters make 4 frames of them; of 512 they make 3.
SAMPLES_IN = 576


def model_bar(model, seats):
    """The least ratio that is wanted of a turn."""
    if seats <= 64:
        return 2.0
    return 1.0 if seats <= 1024 and model != "lstm-5x1024" else 0.7


def product_bar(rows):
    """The least ratio that is wanted of a contraction."""
    if rows <= 8:
        return 1.0
    return 0.8 if rows <= 128 else 0.5


class Refused(Exception):
    """What stopped one side of a pair, in words."""


def printed(command, seconds):
    """What a program of ours prints on stdout."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except OSError as error:
        raise Refused(f"{command[0]}: {error.strerror}") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{' '.join(command)}: not done after {seconds:.0f} s") from error
    if done.returncode != 0:
        said = " ".join(done.stderr.split()) or "without a word"
        raise Refused(f"{' '.join(command)}: ended with {done.returncode}: {said}")
    return done.stdout


class Ours:
    """Our programs. A figure is (commands, all of the turn) in microseconds; of a contraction there is no turn."""

    def __init__(self, lanes, products, backend):
        self.lanes, self.products, self.backend = lanes, products, backend

    def turns(self, path, more, precision, seats, seconds):
        command = [self.lanes, "bench", path, "--backend", self.backend, "--precision", precision, *more]
        streams = ",".join(map(str, seats))
        command += ["--json", "--turns", "1", "--max-seats", str(max(seats)), "--streams", streams]
        text = printed(command, seconds)
        try:
            rows = {row["streams"]: row["device_us"] for row in json.loads(text)["rows"]}
            return {count: (float(rows[count]["compute"]), float(rows[count]["turn"])) for count in seats}
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(f"{' '.join(command)}: no time of the device in what it printed: {error!r}") from error

    def contractions(self, precision, rows, seconds):
        text = printed([self.products, precision, *map(str, rows)], seconds)
        found = {}
        for k, n, figures in re.findall(r"^K (\d+) N (\d+) \w+:(.*)$", text, re.MULTILINE):
            for count, us in re.findall(r"(\d+) rows (-?[\d.]+)", figures):
                found[int(k), int(n), int(count)] = (float(us), None)
        missing = [(k, n, count) for k, n in SIZES for count in rows if (k, n, count) not in found]
        if missing:
            raise Refused(f"{self.products}: printed no time for K, N, rows {missing[0]}")
        return found


class PyTorch:
    """The same by PyTorch. Graphs are captured once and replayed in every round."""

    def __init__(self):
        import torch

        if not torch.cuda.is_available():
            raise Refused(f"PyTorch {torch.__version__} finds no GPU")
        # Graphs by what they are of, and the weights that several of them share.
        self.torch, self.graphs, self.held = torch, {}, {}
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False
        self.name = f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}"

    def captured(self, step, checked):
        """A graph of `step`, and what it holds; `checked` is a tensor that it leaves finite."""
        torch = self.torch
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.no_grad(), torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.no_grad(), torch.cuda.graph(graph):
            step()
        graph.replay()
        torch.cuda.synchronize()
        if not bool(torch.isfinite(checked).all()):
            raise Refused("PyTorch's net gives values that are not finite")
        return graph, step

    def timed(self, key, make):
        """The median time of the graph of `key`, in microseconds; `make` captures it."""
        torch = self.torch
        if key not in self.graphs:
            self.graphs[key] = make()
        graph, _ = self.graphs[key]
        for _ in range(WARM_UP):
            graph.replay()
        torch.cuda.synchronize()
        taken = []
        for _ in range(SAMPLES):
            before, after = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            before.record()
            graph.replay()
            after.record()
            after.synchronize()
            taken.append(before.elapsed_time(after) * 1e3)
        return statistics.median(taken)

    def vad(self, precision, seats):
        def timed(count):
            return self.timed(("vad", precision, count), lambda: self.captured(*self.vad_step(precision, count)))

        return {count: timed(count) for count in seats}

    def stack(self, layers, width, precision, seats):
        def timed(count):
            make = lambda: self.captured(*self.stack_step(layers, width, precision, count))
            return self.timed((layers, width, precision, count), make)

        return {count: timed(count) for count in seats}

    def contractions(self, precision, rows):
        """Each of `PRODUCTS` in a row; the weights of one size are held for all numbers of rows."""
        torch, dtype, found = self.torch, self.dtype(precision), {}
        for k, n in SIZES:
            if (k, n, precision) not in self.held:
                held = [torch.randn(k, n, device="cuda", dtype=dtype) for _ in range(PRODUCTS)]
                self.held[k, n, precision] = held
            weights = self.held[k, n, precision]
            for count in rows:

                def make(k=k, n=n, count=count, weights=weights):
                    x = torch.randn(count, k, device="cuda", dtype=dtype)
                    out = torch.empty(count, n, device="cuda", dtype=dtype)
                    return self.captured(lambda: [torch.mm(x, weight, out=out) for weight in weights], out)

                found[k, n, count] = self.timed(("product", k, n, precision, count), make) / PRODUCTS
        return found

    def dtype(self, precision):
        return {"f32": self.torch.float32, "bf16": self.torch.bfloat16}[precision]

    def vad_step(self, precision, seats):
        """A net of Silero's shape: frames by a convolution, four blocks, a cell of 128, a head."""
        torch, dtype = self.torch, self.dtype(precision)
        nn, functional = torch.nn, torch.nn.functional

        def placed(module):
            return module.to("cuda", dtype).eval()

        frames = placed(nn.Conv1d(1, 258, 256, stride=128, bias=False))
        shapes = ((129, 128, 1), (128, 64, 2), (64, 64, 2), (64, 128, 1))
        blocks = [placed(nn.Conv1d(before, after, 3, stride=stride, padding=1)) for before, after, stride in shapes]
        cell, head = placed(nn.LSTMCell(128, 128)), placed(nn.Linear(128, 1))
        x = torch.randn(seats, SAMPLES_IN, device="cuda", dtype=dtype)
        h, c = (torch.rand(seats, 128, device="cuda", dtype=dtype) for _ in range(2))

        def step():
            y = frames(functional.pad(x[:, None], (0, 64), mode="reflect"))
            y = torch.sqrt(y[:, :129] ** 2 + y[:, 129:] ** 2)
            for block in blocks:
                y = torch.relu(block(y))
            next_h, next_c = cell(y.mean(-1), (h, c))
            h.copy_(next_h)
            c.copy_(next_c)
            return torch.sigmoid(head(torch.relu(h)))

        return step, h

    def stack_step(self, layers, width, precision, seats):
        """`cargo xtask stack`: linear, relu, cells each fed by the one before, linear. A net for each precision."""
        torch, dtype = self.torch, self.dtype(precision)
        nn, key = torch.nn, (layers, width, precision)
        if key not in self.held:
            cells = [nn.LSTMCell(width, width) for _ in range(layers)]
            modules = [nn.Linear(WIDTH_IN, width), *cells, nn.Linear(width, WIDTH_OUT)]
            self.held[key] = [module.to("cuda", dtype).eval() for module in modules]
        first, *cells, last = self.held[key]
        x = torch.randn(seats, WIDTH_IN, device="cuda", dtype=dtype)
        hidden, memory = ([torch.rand(seats, width, device="cuda", dtype=dtype) for _ in cells] for _ in range(2))

        def step():
            y, new = torch.relu(first(x)), []
            for cell, h, c in zip(cells, hidden, memory):
                y, next_c = cell(y, (h, c))
                new.append((y, next_c))
            for h, c, (next_h, next_c) in zip(hidden, memory, new):
                h.copy_(next_h)
                c.copy_(next_c)
            return last(y)

        return step, hidden[-1]


class Pair:
    """What both sides do: `ours(seconds)` gives (commands, turn) by key, `theirs()` microseconds by key."""

    def __init__(self, name, ours, theirs, lines):
        self.name, self.ours, self.theirs = name, ours, theirs
        self.lines = lines  # key: (words, bar)
        self.took_s = 0.0
        self.rounds = []  # of {key: (ours, turn, theirs)}

    def round(self, ours_first, seconds):
        began = time.monotonic()
        if ours_first:
            ours, theirs = self.ours(seconds), self.theirs()
        else:
            theirs, ours = self.theirs(), self.ours(seconds)
        self.rounds.append({key: (*ours[key], theirs[key]) for key in self.lines})
        self.took_s = time.monotonic() - began

    def rows(self):
        """A line for each key, once there was a round."""
        for key, (words, bar) in self.lines.items() if self.rounds else ():
            samples = [taken[key] for taken in self.rounds]
            ours, theirs = (statistics.median(sample[at] for sample in samples) for at in (0, 2))
            turns = [sample[1] for sample in samples if sample[1] is not None]
            # What takes no time that the clock can tell is no slower than anything.
            ratios = [sample[2] / max(sample[0], 1e-3) for sample in samples]
            ratio = statistics.median(ratios)
            yield {
                "what": self.name,
                "of": words,
                "ours_us": ours,
                "turn_us": statistics.median(turns) if turns else None,
                "pytorch_us": theirs,
                "ratio": ratio,
                "least": min(ratios),
                "most": max(ratios),
                "bar": bar,
                "holds": ratio >= bar,
                "rounds": len(samples),
            }


def run(pairs, rounds, limit_s, clock=time.monotonic):
    """Rounds of all pairs, as long as one more ends before `limit_s`; what stopped pairs, which have no later round."""
    began, stopped = clock(), {}
    for number in range(rounds):
        for pair in (pair for pair in pairs if pair.name not in stopped):
            left = limit_s - (clock() - began)
            # The first round is longer than later ones: kernels are compiled and graphs captured.
            if left <= (pair.took_s if number else 0):
                if not pair.rounds:
                    stopped[pair.name] = f"no time left of {limit_s:.0f} s; --seconds takes more, --only fewer"
                continue
            try:
                pair.round(number % 2 == 0, left)
            except (Refused, RuntimeError) as why:  # PyTorch's own are of the latter kind
                stopped[pair.name] = str(why)
            print(f"round {number + 1}: {pair.name} after {clock() - began:.0f} s", file=sys.stderr)
    return stopped


def table(rows):
    head = "| what | | ours µs (turn) | PyTorch µs | ratio (least to most) | bar | |"
    lines = [head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in rows:
        turn = "" if row["turn_us"] is None else f" ({row['turn_us']:.1f})"
        ratio = f"{row['ratio']:.2f} ({row['least']:.2f} to {row['most']:.2f})"
        said = "holds" if row["holds"] else "MISSED"
        figures = f"{row['ours_us']:.2f}{turn} | {row['pytorch_us']:.2f} | {ratio} | {row['bar']} | {said}"
        lines.append(f"| {row['what']} | {row['of']} | {figures} |")
    return "\n".join(lines)


def made(maker, layers, width, folder):
    """The path of a stack of random weights, written now."""
    path = os.path.join(folder, f"lstm-{layers}x{width}.onnx")
    printed([maker, str(layers), str(width), "0", path], 60)
    return path


def pairs_of(args, ours, theirs, folder):
    """The pairs that there are programs and models for, of those that `--only` names."""

    def chosen(name):
        return not args.only or any(name.startswith(only) for only in args.only)

    def turns(name, path, more, precision, step):
        lines = {count: (f"{count} seats", model_bar(name, count)) for count in args.seats}
        return Pair(
            f"{name} {precision}",
            lambda seconds: ours.turns(path, more, precision, args.seats, seconds),
            lambda: step(precision, args.seats),
            lines,
        )

    def contractions(precision):
        keys = ((k, n, count) for k, n in SIZES for count in args.rows)
        return Pair(
            f"products {precision}",
            lambda seconds: ours.contractions(precision, args.rows, seconds),
            lambda: theirs.contractions(precision, args.rows),
            {key: ("{} × {}, {} rows".format(*key), product_bar(key[2])) for key in keys},
        )

    pairs = []
    if args.vad and chosen("vad f32"):
        more = ["--input", f"input=normal,frame={SAMPLES_IN}", "--fix", "sr=16000", "--init", "state=uniform"]
        pairs.append(turns("vad", args.vad, more, "f32", theirs.vad))
    for name, (layers, width) in STACKS.items():
        precisions = [precision for precision in PRECISIONS if chosen(f"{name} {precision}")]
        path = getattr(args, name.replace("-", "_"))
        if path is None and args.stack and precisions:
            path = made(args.stack, layers, width, folder)
        if path is None:
            continue
        states = (f"{state}_{at}" for at in range(layers) for state in ("hidden", "cell"))
        more = ["--input", "normal", *(word for state in states for word in ("--init", f"{state}=uniform"))]
        step = functools.partial(theirs.stack, layers, width)
        pairs += [turns(name, path, more, precision, step) for precision in precisions]
    if args.products:
        pairs += [contractions(precision) for precision in PRECISIONS if chosen(f"products {precision}")]
    return pairs


def counts(text):
    """Whole numbers above 0, commas between them."""
    try:
        found = tuple(int(word) for word in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise argparse.ArgumentTypeError(f"found {text}; whole numbers above 0 with commas between them are accepted")
    return found


def positive(text):
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found < float("inf"):
        raise argparse.ArgumentTypeError(f"found {text}; a number above 0 is accepted")
    return found


def one_count(text):
    found = counts(text)
    if len(found) > 1:
        raise argparse.ArgumentTypeError(f"found {text}; one whole number above 0 is accepted")
    return found[0]


def parser():
    words = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    words.add_argument("--lanes", metavar="PROGRAM", help="the command line, built with its feature cuda")
    words.add_argument("--vad", metavar="FILE", help="silero_vad_op18_ifless.onnx")
    words.add_argument("--stack", metavar="PROGRAM", help="lstm_stack, which makes the stacks that no FILE is given for")
    for name in STACKS:
        words.add_argument(f"--{name}", metavar="FILE", help=f"what `cargo xtask stack` writes as {name}.onnx")
    words.add_argument("--products", metavar="PROGRAM", help="the example of backend-cuda, for contractions")
    words.add_argument("--backend", default="cuda", metavar="B", help="as `lanes` has it (cuda); PyTorch takes its first GPU")
    words.add_argument("--seats", type=counts, default=SEATS, metavar="N,…", help="of turns (1,64,1024,4096)")
    words.add_argument("--rows", type=counts, default=ROWS, metavar="N,…", help="of contractions (1,8,32,64,128,512)")
    words.add_argument("--rounds", type=one_count, default=5, metavar="N", help="at most (5)")
    words.add_argument("--seconds", type=positive, default=150.0, metavar="S", help="no round ends later (150)")
    only = "how its name begins, as `lstm-3x512 bf16`; repeatable"
    words.add_argument("--only", action="append", default=[], metavar="PAIR", help=only)
    words.add_argument("--json", metavar="FILE", help="the lines as a JSON object too")
    return words


def main(argv=None, theirs=PyTorch):
    began, words = time.monotonic(), parser()
    args = words.parse_args(argv)
    if not args.lanes and (args.vad or args.stack or args.lstm_3x512 or args.lstm_5x1024):
        words.error("a model is timed by --lanes PROGRAM")
    for option in ("lanes", "vad", "stack", "lstm_3x512", "lstm_5x1024", "products"):
        path = getattr(args, option)
        if path and not os.path.isfile(path):
            words.error(f"--{option.replace('_', '-')} {path}: no such file")
    with tempfile.TemporaryDirectory() as folder:
        try:
            ours, theirs = Ours(args.lanes, args.products, args.backend), theirs()
            pairs = pairs_of(args, ours, theirs, folder)
        except (Refused, ImportError) as why:
            print(f"gpu_beside: {why}", file=sys.stderr)
            return 1
        if not pairs:
            words.error("nothing to time: give --products, or --lanes with a model or --stack, that --only names too")
        print(theirs.name, flush=True)
        stopped = run(pairs, args.rounds, args.seconds - (time.monotonic() - began))
    rows = [row for pair in pairs for row in pair.rows()]
    print(table(rows), flush=True)
    missed = [row for row in rows if not row["holds"]]
    print(f"{len(rows) - len(missed)} of {len(rows)} hold, {time.monotonic() - began:.0f} s")
    if args.json:
        try:
            with open(args.json, "w", encoding="utf-8") as file:
                json.dump({"gpu": theirs.name, "rows": rows, "stopped": stopped}, file, indent=1)
        except OSError as error:
            print(f"gpu_beside: {args.json}: {error.strerror}", file=sys.stderr)
            return 1
    for name, why in stopped.items():
        print(f"gpu_beside: {name}: {why}", file=sys.stderr)
    return 1 if missed or stopped else 0


if __name__ == "__main__":
    sys.exit(main())
