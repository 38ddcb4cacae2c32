"""What is compared, and what is said of it, with programs and an engine of the test's own: without GPU and PyTorch."""

import contextlib
import io
import json
import stat
import sys
import tempfile
import unittest
from pathlib import Path

import gpu_beside

# Answers as the programs do: a turn of N seats has commands of 10 + N/64 µs; a contraction takes K/256 µs.
LANES = """
import json, sys
words = sys.argv[1:]
with open(FOLDER + "/asked", "a") as asked:
    asked.write(" ".join(words) + "\\n")
seats = [int(count) for count in words[words.index("--streams") + 1].split(",")]
times = lambda count: {"seats": count, "turn": 20 + count / 64, "compute": 10 + count / 64}
print(json.dumps({"rows": [{"streams": count, "device_us": times(count)} for count in seats]}))
"""
PRODUCTS = """
import sys
for k, n in ((256, 256), (512, 2048), (1024, 4096)):
    print(f"K {k} N {n} {sys.argv[1]}:" + "".join(f"  {rows} rows {k / 256:.2f} µs" for rows in sys.argv[2:]))
"""
STACK = """
import sys
open(sys.argv[4], "w").write("a model of " + sys.argv[1] + " cells")
"""


class Engine:
    """Takes as long as it is told to, by what is asked for."""

    def __init__(self, us):
        self.us, self.name = us, "a GPU, an engine"

    def vad(self, precision, seats):
        return {count: self.us for count in seats}

    def stack(self, layers, width, precision, seats):
        return {count: self.us for count in seats}

    def contractions(self, precision, rows):
        return {(k, n, count): self.us for k, n in gpu_beside.SIZES for count in rows}


class Beside(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in (("lanes", LANES), ("products", PRODUCTS), ("stack", STACK)):
            self.program(name, text)
        (self.folder / "vad.onnx").write_text("a model")

    def program(self, name, text):
        path = self.folder / name
        path.write_text(f"#!{sys.executable}\nFOLDER = {str(self.folder)!r}\n{text}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def run_script(self, line, us=100.0, engine=None):
        """Exit status, stdout, stderr, and the rows of the JSON file."""
        out, err, file = io.StringIO(), io.StringIO(), self.folder / "rows.json"
        file.unlink(missing_ok=True)
        argv = [word.replace("{}", str(self.folder)) for word in line.split()] + ["--json", str(file)]
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                status = gpu_beside.main(argv, engine or (lambda: Engine(us)))
            except SystemExit as end:
                status = end.code
        rows = json.loads(file.read_text())["rows"] if file.exists() else None
        return status, out.getvalue(), err.getvalue(), rows

    ALL = "--lanes {}/lanes --vad {}/vad.onnx --stack {}/stack --products {}/products"

    def test_every_pair_stands_beside_its_bar(self):
        status, out, err, rows = self.run_script(self.ALL + " --rounds 3")
        # By hand: models 100 µs / (10 + N/64), wanted 2, 2, 1 and 0.7; contractions 100 / (K/256) µs, all wanted.
        turns = {(row["what"], row["of"]): (row["ratio"], row["bar"], row["holds"]) for row in rows}
        for model in ("vad f32", "lstm-3x512 f32", "lstm-3x512 bf16"):
            self.assertEqual(turns[model, "1 seats"], (100 / (10 + 1 / 64), 2.0, True))
            self.assertEqual(turns[model, "64 seats"], (100 / 11, 2.0, True))
            self.assertEqual(turns[model, "1024 seats"], (100 / 26, 1.0, True))
            self.assertEqual(turns[model, "4096 seats"], (100 / 74, 0.7, True))
        self.assertEqual(turns["lstm-5x1024 bf16", "1024 seats"][1], 0.7)
        self.assertEqual(turns["products bf16", "1024 × 4096, 512 rows"], (25.0, 0.5, True))
        bars = [turns["products f32", f"256 × 256, {rows} rows"][1] for rows in (8, 32, 128)]
        self.assertEqual(bars, [1.0, 0.8, 0.8])
        self.assertEqual(len(rows), 5 * 4 + 2 * 3 * 6)
        self.assertEqual({row["rounds"] for row in rows}, {3})
        self.assertEqual((status, out.count("MISSED"), out.count("| holds |")), (0, 0, len(rows)))
        self.assertIn("56 of 56 hold", out)
        asked = (self.folder / "asked").read_text().splitlines()
        self.assertEqual(len(asked), 3 * 5)
        for said in ("--backend cuda --precision", "--json --turns 1", "--streams 1,64,1024,4096"):
            self.assertTrue(all(said in line for line in asked))
        self.assertEqual(sum("--precision bf16" in line for line in asked), 3 * 2)
        self.assertIn("input=normal,frame=576 --fix sr=16000 --init state=uniform", asked[0])
        self.assertIn("--init hidden_4=uniform --init cell_4=uniform", next(line for line in asked if "5x1024" in line))

    def test_a_bar_that_is_missed_is_said_and_ends_with_1(self):
        status, out, _, rows = self.run_script(self.ALL + " --rounds 1 --only vad", us=25.0)
        # 2.5, 2.3, 0.96 and 0.34 times as fast.
        self.assertEqual([row["holds"] for row in rows], [True, True, False, False])
        self.assertEqual((status, out.count("MISSED")), (1, 2))

    def test_a_ratio_is_of_its_round_and_the_median_of_all(self):
        took = iter((100.0, 900.0, 200.0))

        class Drifting(Engine):
            def vad(self, precision, seats):
                us = next(took)
                return {count: us for count in seats}

        _, _, _, rows = self.run_script(self.ALL + " --rounds 3 --only vad --seats 64", engine=lambda: Drifting(0))
        [row] = rows
        self.assertEqual((row["least"], row["ratio"], row["most"]), (100 / 11, 200 / 11, 900 / 11))
        self.assertEqual((row["ours_us"], row["turn_us"], row["pytorch_us"]), (11.0, 21.0, 200.0))

    def test_sides_take_turns_at_being_first(self):
        order = []

        def ours(_):
            order.append("ours")
            return {1: (1.0, None)}

        def theirs():
            order.append("theirs")
            return {1: 1.0}

        pair = gpu_beside.Pair("pair", ours, theirs, {1: ("", 1.0)})
        self.assertEqual(gpu_beside.run([pair], 3, 100.0), {})
        self.assertEqual(order, ["ours", "theirs", "theirs", "ours", "ours", "theirs"])

    def test_no_round_begins_that_would_end_late(self):
        now = [0.0]

        def taking(seconds):
            def side(_):
                now[0] += seconds
                return {1: (1.0, None)}

            return gpu_beside.Pair("pair", side, lambda: {1: 1.0}, {1: ("", 1.0)})

        pair = taking(30.0)
        real, gpu_beside.time.monotonic = gpu_beside.time.monotonic, lambda: now[0]
        self.addCleanup(setattr, gpu_beside.time, "monotonic", real)
        # 30, 60, 90, and a fourth would end at 120.
        self.assertEqual(gpu_beside.run([pair], 9, 100.0, lambda: now[0]), {})
        self.assertEqual(len(pair.rounds), 3)
        # One that never began is no silence.
        first, second = taking(30.0), taking(1.0)
        second.name = "second"
        self.assertIn("no time left of 30 s", gpu_beside.run([first, second], 1, 30.0, lambda: now[0])["second"])

    def test_what_fails_is_named_and_the_rest_goes_on(self):
        refusing = "import sys\nprint('lanes: --backend cuda: no\\nNVIDIA driver', file=sys.stderr)\nsys.exit(2)\n"
        self.program("lanes", refusing)
        status, out, err, rows = self.run_script(self.ALL + " --rounds 2 --only vad --only products")
        self.assertEqual((status, {row["what"] for row in rows}), (1, {"products f32", "products bf16"}))
        self.assertIn("gpu_beside: vad f32: ", err)
        self.assertIn("ended with 2: lanes: --backend cuda: no NVIDIA driver", err)
        self.program("lanes", "print('{\"rows\": [{\"streams\": 1, \"device_us\": null}]}')\n")
        status, _, err, _ = self.run_script(self.ALL + " --rounds 1 --only vad --seats 1")
        self.assertTrue(status == 1 and "no time of the device" in err, err)
        self.program("products", "print('K 256 N 256 f32:  1 rows 1.00 µs')\n")
        status, _, err, _ = self.run_script(self.ALL + " --rounds 1 --only products")
        self.assertTrue(status == 1 and "printed no time for K, N, rows (256, 256, 8)" in err, err)

        class Broken(Engine):
            def vad(self, precision, seats):
                raise RuntimeError("CUDA out of memory")

        self.setUp()
        status, _, err, rows = self.run_script(self.ALL + " --rounds 2 --only vad", engine=lambda: Broken(1))
        self.assertEqual((status, rows, err.count("vad f32: CUDA out of memory")), (1, [], 1))

    def test_wrong_usage_ends_with_2(self):
        for line, said in (
            ("", "nothing to time"),
            ("--lanes {}/none --vad {}/vad.onnx", "none: no such file"),
            ("--vad {}/vad.onnx", "--lanes PROGRAM"),
            (self.ALL + " --only nothing", "nothing to time"),
            (self.ALL + " --seats 1,0", "whole numbers above 0"),
            (self.ALL + " --rows one", "whole numbers above 0"),
            (self.ALL + " --rounds 1,2", "one whole number"),
            (self.ALL + " --seconds nan", "a number above 0"),
        ):
            status, _, err, _ = self.run_script(line)
            self.assertTrue(status == 2 and said in err, (line, status, err))


if __name__ == "__main__":
    unittest.main()
