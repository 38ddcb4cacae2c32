"""Measures `vad.onnx` as users run it: through onnxruntime, one frame a turn, states carried along.

    evaluate.py [--model FILE] [--speech FOLDER] [--silero FILE]

Prints balanced accuracy per SNR and level on voices that training never heard; with a folder of real
speech (16 kHz, wav or raw i16) and Silero's `silero_vad_op18_ifless.onnx`, how often the two agree.
"""

import argparse
import pathlib

import numpy as np
import onnxruntime

import mix
import noise
import speech
from speech import FRAME, RATE

HERE = pathlib.Path(__file__).parent
SNRS = [-5, 0, 5, 10, 15, 20, 30, None]
LEVELS = [-40, -30, -20, -10, 0]


def open_model(path):
    """An onnxruntime session on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def frames_of(pcm):
    """`[turns, FRAME]` f32 frames of i16 samples, zeros after the end."""
    turns = -(-len(pcm) // FRAME)
    padded = np.zeros(turns * FRAME, np.float32)
    padded[:len(pcm)] = pcm / np.float32(32768)
    return padded.reshape(turns, FRAME)


def ours(session, frames):
    """`[streams, turns]` probabilities of our model for `[streams, turns, FRAME]` frames."""
    size = {value.name: value.shape[1] for value in session.get_inputs()}
    context, state = (np.zeros((len(frames), size[name]), np.float32) for name in ["context", "state"])
    out = []
    for turn in range(frames.shape[1]):
        answer, context, state = session.run(
            ["output", "next_context", "next_state"],
            {"input": np.ascontiguousarray(frames[:, turn]), "context": context, "state": state})
        out.append(answer[:, 0])
    return np.stack(out, axis=1)


def silero(session, frames):
    """The same of Silero v6, whose input is a frame with the 64 samples before it."""
    streams = len(frames)
    state, before = np.zeros((2, streams, 128), np.float32), np.zeros((streams, 64), np.float32)
    rate = np.array(RATE, np.int64)
    out = []
    for turn in range(frames.shape[1]):
        window = np.concatenate([before, frames[:, turn]], axis=1)
        before = window[:, -64:]
        answer, state = session.run(None, {"input": window, "sr": rate, "state": state})
        out.append(answer[:, 0])
    return np.stack(out, axis=1)


def balanced_accuracy(speech_said, labels):
    """The mean of the share of speech found and the share of non-speech left alone."""
    return (speech_said[labels].mean() + (~speech_said[~labels]).mean()) / 2


def test_sets(streams=20, frames=470):
    """(name, [streams, turns, FRAME] frames, labels): per SNR over all levels, then per level at 15 dB."""
    rng = np.random.default_rng(20_000)
    mixer = mix.Mixer(speech.utterances("test", 300, rng), rng)
    kinds = [*noise.KINDS, "babble"]

    def make(name, snr, level):
        made = [mixer.stream(frames, snr, rng.uniform(-40, 0) if level is None else level, [kinds[index % len(kinds)]])
                for index in range(streams)]
        return name, np.stack([frames_of(pcm) for pcm, _ in made]), np.stack([labels for _, labels in made])

    for snr in SNRS:
        yield make("clean" if snr is None else f"SNR {snr} dB", snr, None)
    for level in LEVELS:
        yield make(f"SNR 15 dB, peak {level} dBFS", 15, level)


def read_folder(folder):
    """(file name, i16 samples) of every wav and raw file below `folder`."""
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix == ".raw":
            yield path.name, np.frombuffer(path.read_bytes(), "<i2")
        elif path.suffix == ".wav":
            yield path.name, np.round(speech.read_wav(path.read_bytes()) * 32768).astype(np.int16)


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--model", default=HERE / "vad.onnx")
    arguments.add_argument("--speech", help="folder of real speech")
    arguments.add_argument("--silero", help="silero_vad_op18_ifless.onnx")
    arguments = arguments.parse_args()
    model = open_model(arguments.model)
    peer = open_model(arguments.silero) if arguments.silero else None

    print(f"{'held-out voices':28} {'balanced':>9} {'speech':>7} {'other':>7}" + (f" {'Silero':>7}" if peer else ""))
    for name, frames, labels in test_sets():
        said = ours(model, frames) >= 0.5
        line = f"{name:28} {balanced_accuracy(said, labels):9.3f} {said[labels].mean():7.3f} {(~said[~labels]).mean():7.3f}"
        if peer:
            line += f" {balanced_accuracy(silero(peer, frames) >= 0.5, labels):7.3f}"
        print(line, flush=True)

    if arguments.speech and peer:
        print(f"\n{'real speech':50} {'frames':>7} {'agree':>7} {'ours':>6} {'Silero':>7}")
        agreements, said = [], []
        for name, pcm in read_folder(arguments.speech):
            frames = frames_of(pcm)[None]
            a, b = ours(model, frames)[0] >= 0.5, silero(peer, frames)[0] >= 0.5
            agreements.append(a == b)
            said.append(b)
            print(f"{name:50} {len(a):7} {(a == b).mean():7.3f} {a.mean():6.2f} {b.mean():7.2f}")
        every = np.concatenate(agreements)
        print(f"{'all':50} {len(every):7} {every.mean():7.3f}")
        # What a model that always says speech would get: the agreement has to be read against it.
        print(f"{'always speech, for comparison':50} {len(every):7} {np.concatenate(said).mean():7.3f}")


if __name__ == "__main__":
    main()
