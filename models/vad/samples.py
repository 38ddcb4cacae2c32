"""Writes `speech/*.wav`, a few seconds each of held-out voices, and what the model answers to them.

    samples.py [--model FILE]

`expected/NAME.npy`, `[turn, 1]` f32, holds onnxruntime's probabilities for `speech/NAME.wav`, run alone.
"""

import argparse
import pathlib
import wave

import numpy as np

import evaluate
import mix
import speech
from speech import FRAME, RATE

HERE = pathlib.Path(__file__).parent
SEED = 30_000
# name, samples, noise, SNR in dB, peak in dBFS; lengths that are not whole frames are on purpose.
SAMPLES = [
    ("quiet_room", 60_000, None, None, -6),
    ("far_away", 70_000, None, None, -30),
    ("pink_15db", 56_123, ["pink"], 15, -10),
    ("babble_15db", 64_000, ["babble"], 15, -4),
    ("music_10db", 72_000, ["music"], 10, -8),
    ("hum_5db", 51_200, ["hum"], 5, -12),
    ("keys_10db", 65_537, ["clicks"], 10, -3),
    ("gusts_5db", 80_000, ["wind"], 5, -1),
]


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--model", default=HERE / "vad.onnx")
    model = evaluate.open_model(arguments.parse_args().model)
    rng = np.random.default_rng(SEED)
    mixer = mix.Mixer(speech.utterances("test", 60, rng), rng)
    for folder in ["speech", "expected"]:
        (HERE / folder).mkdir(exist_ok=True)
    for name, count, kinds, snr, peak_db in SAMPLES:
        # A stream of speech only or of pauses only shows nothing: mix until both are there.
        while True:
            pcm, labels = mixer.stream(-(-count // FRAME), snr, peak_db, kinds)
            if 0.35 < labels.mean() < 0.75:
                break
        pcm = pcm[:count]
        with wave.open(str(HERE / "speech" / f"{name}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(RATE)
            file.writeframes(pcm.astype("<i2").tobytes())
        expected = evaluate.ours(model, evaluate.frames_of(pcm)[None])[0][:, None]
        np.save(HERE / "expected" / f"{name}.npy", expected)
        said = expected[:, 0] >= 0.5
        print(f"{name:12} {len(expected):4} turns, {said.mean():.0%} speech, {(said == labels).mean():.0%} as labelled")


if __name__ == "__main__":
    main()
