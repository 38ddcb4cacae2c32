"""Clean speech from espeak-ng and flite, and which of its frames count as speech.

A voice is for training or for testing, never both; `Voice` names it and `utterances` speaks the
sentences of its side. Not here: noise (`noise.py`) and mixing (`mix.py`).
"""

import io
import subprocess
import wave
from dataclasses import dataclass

import numpy as np
from scipy import signal

import sentences

RATE = 16_000
"""Samples a second, everywhere."""

FRAME = 512
"""Samples that a turn of the model takes: 32 ms."""

# The energy of a clean signal is looked at in quarters of a frame.
QUARTER = FRAME // 4
# A quarter is active within this many dB of the utterance's loud quarters (their 95th percentile).
ACTIVE_DB = 35.0
# A frame stays speech for this many frames (96 ms) after its last active one: it covers stop
# closures and reverberation, and a model that hears only the past can follow it.
HANGOVER = 3

# The variants of espeak-ng change pitch, formants, voicing and breath: each is another speaker.
ESPEAK_TRAIN = (
    "m1 m2 m3 m4 m6 f1 f2 f4 adam Alex Alicia Andy Annie anika antonio aunty belinda benjamin boris "
    "caleb croak david Denis ed edward Gene grandma grandpa Hugo iven Jacky john klatt klatt2 klatt3 "
    "klatt4 Lee linda marcelo Mario max Michael michel Mike pablo paul quincy rob robert sandro steph "
    "travis Tweaky victor whisper zac"
).split()
ESPEAK_TEST = "m5 m7 m8 f3 f5 Andrea Diogo Marco norbert pedro shelby whisperf".split()
FLITE_TRAIN = ["kal16", "rms", "slt"]
FLITE_TEST = ["awb"]


@dataclass(frozen=True)
class Voice:
    """One speaker: a flite voice, or a variant of espeak-ng with the language it speaks."""

    engine: str
    name: str
    language: str

    def speak(self, text, speed, pitch):
        """`text` at `speed` times the usual rate; `pitch` in 0..1, 0.5 being the usual one."""
        if self.engine == "flite":
            f0 = {"kal16": 100, "rms": 95, "slt": 170, "awb": 125}[self.name] * (0.75 + 0.5 * pitch)
            command = ["flite", "-voice", self.name, "--setf", f"duration_stretch={1 / speed:.3f}",
                       "--setf", f"int_f0_target_mean={f0:.1f}", "-t", text, "-o", "/dev/stdout"]
        else:
            command = ["espeak-ng", "-v", f"{self.language}+{self.name}", "-s", str(round(165 * speed)),
                       "-p", str(round(100 * pitch)), "--stdout", text]
        return read_wav(subprocess.run(command, check=True, capture_output=True).stdout)


def read_wav(data):
    """Mono f32 samples at `RATE` of a 16-bit wav, read to its end (a piped header has no true length)."""
    with wave.open(io.BytesIO(data)) as file:
        rate, channels = file.getframerate(), file.getnchannels()
        pcm = np.frombuffer(file.readframes(len(data)), dtype="<i2")
    samples = pcm.reshape(-1, channels).mean(axis=1).astype(np.float32) / 32768
    if rate != RATE:
        divisor = np.gcd(rate, RATE)
        samples = signal.resample_poly(samples, RATE // divisor, rate // divisor).astype(np.float32)
    return samples


def voices(side):
    """The voices of `side`, "train" or "test", each variant of espeak-ng in every language of its side."""
    languages = sentences.TRAIN if side == "train" else sentences.TEST
    variants, flites = (ESPEAK_TRAIN, FLITE_TRAIN) if side == "train" else (ESPEAK_TEST, FLITE_TEST)
    return ([Voice("flite", name, "en") for name in flites],
            [Voice("espeak", name, language) for name in variants for language in languages])


def utterances(side, count, rng):
    """`count` clean utterances of `side` as (voice name, f32 samples): a third of them from flite."""
    flites, espeaks = voices(side)
    texts = sentences.TRAIN if side == "train" else sentences.TEST
    out = []
    for index in range(count):
        voice = pick(flites if index % 3 == 0 else espeaks, rng)
        # English comes up as often as all other languages: it has the most sentences.
        if voice.engine == "espeak" and rng.random() < 0.5:
            voice = Voice("espeak", voice.name, "en")
        samples = voice.speak(pick(texts[voice.language], rng), rng.uniform(0.75, 1.35), rng.uniform(0.1, 0.9))
        if side == "train":
            # Played faster or slower, a voice has another vocal tract: one more speaker.
            samples = resample(samples, rng.uniform(0.85, 1.18))
        out.append((f"{voice.engine}:{voice.name}", trim(samples)))
    return out


def pick(items, rng):
    """One of `items`, each as likely."""
    return items[int(rng.integers(len(items)))]


def resample(samples, speed):
    """`samples` played at `speed` times their rate."""
    return signal.resample_poly(samples, 100, round(100 * speed)).astype(np.float32)


def trim(samples):
    """`samples` without the silence before and after, scaled to an active RMS of 1."""
    active = active_quarters(samples)
    where = np.flatnonzero(active)
    samples = samples[where[0] * QUARTER:(where[-1] + 1) * QUARTER]
    active = active_quarters(samples)
    energy = np.square(samples[:len(active) * QUARTER].reshape(-1, QUARTER)[active])
    return samples / np.sqrt(energy.mean())


def active_quarters(samples):
    """Which whole quarter frames of a clean signal carry speech."""
    count = len(samples) // QUARTER
    energy = np.square(samples[:count * QUARTER].reshape(count, QUARTER)).mean(axis=1)
    decibels = 10 * np.log10(energy + 1e-12)
    return decibels > np.percentile(decibels, 95) - ACTIVE_DB


def frame_labels(active):
    """Labels of whole frames from active quarters: half of a frame active, or the hangover of one."""
    speech = active[:len(active) // 4 * 4].reshape(-1, 4).sum(axis=1) >= 2
    held = speech.copy()
    for late in range(1, HANGOVER + 1):
        held[late:] |= speech[:-late]
    return held
