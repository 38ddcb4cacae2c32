"""Streams of audio with labels: utterances and pauses, a room, noise at a chosen SNR, a level."""

import numpy as np
from scipy import signal

import noise
from speech import FRAME, QUARTER, RATE, active_quarters, frame_labels, pick


class Mixer:
    """Makes streams out of the clean utterances of one side."""

    def __init__(self, utterances, rng):
        self.utterances, self.rng = utterances, rng
        self.by_voice = {}
        for name, samples in utterances:
            self.by_voice.setdefault(name, []).append(samples)

    def stream(self, frames, snr, peak_db, kinds=None, speech=True):
        """`frames` frames of (i16 samples, labels).

        `snr` is in dB, over the active speech against the noise where it sounds; `None` leaves only a
        noise floor of the recorder, or nothing. The loudest sample comes out at `peak_db` dBFS.
        `kinds` names the noises to draw from (default: all).
        """
        rng, count = self.rng, frames * FRAME
        clean, active = self.talk(count) if speech else (np.zeros(count, np.float32), np.zeros(count // QUARTER, bool))
        if rng.random() < 0.7:
            clean = equalise(clean, rng)
        if rng.random() < 0.5:
            clean = reverberate(clean, rng)
        # Filters and rooms change the level of speech; the SNR is of what is heard.
        level = active_rms(clean, active)
        if snr is None:
            floor = 10 ** (rng.uniform(-75, -40) / 20) if rng.random() < 0.7 else 0.0
            mixed = clean / level + floor * noise.coloured(count, rng)
        else:
            mixed = clean / level + 10 ** (-snr / 20) * self.background(count, kinds)
        mixed = mixed * (10 ** (peak_db / 20) / (np.abs(mixed).max() + 1e-9))
        if rng.random() < 0.05:
            mixed = np.clip(mixed, -0.3 * np.abs(mixed).max(), 0.3 * np.abs(mixed).max())
        pcm = np.clip(np.round(mixed * 32767), -32768, 32767).astype(np.int16)
        return pcm, frame_labels(active)

    def talk(self, count):
        """`count` samples of clean speech with pauses, and which of its quarters are active."""
        rng = self.rng
        samples, active = np.zeros(count, np.float32), np.zeros(count // QUARTER, bool)
        voices = list(self.by_voice)
        voice = pick(voices, rng)
        at = int(RATE * rng.exponential(0.7))
        while at < count:
            if rng.random() < 0.2:
                voice = pick(voices, rng)
            said = pick(self.by_voice[voice], rng) * 10 ** (rng.uniform(-5, 5) / 20)
            at = at // QUARTER * QUARTER
            part = said[:count - at]
            samples[at:at + len(part)] += part
            spoken = active_quarters(said)[:len(part) // QUARTER]
            active[at // QUARTER:at // QUARTER + len(spoken)] |= spoken
            at += len(said) + int(RATE * (rng.uniform(0.1, 0.7) if rng.random() < 0.4 else rng.uniform(0.7, 4)))
        return samples, active

    def background(self, count, kinds):
        """One noise, sometimes two, of unit RMS, sometimes starting or stopping within the stream."""
        rng = self.rng
        kinds = kinds or [*noise.KINDS, "babble"]
        out = self.one_noise(pick(kinds, rng), count)
        if rng.random() < 0.3:
            out = noise.unit(out + 10 ** (rng.uniform(-15, 0) / 20) * self.one_noise(pick(kinds, rng), count))
        if rng.random() < 0.3:
            out = equalise(out, rng)
            out = noise.unit(out)
        if rng.random() < 0.25:
            edges = np.sort(rng.integers(0, count, 2))
            gate = np.zeros(count, np.float32)
            gate[edges[0]:edges[1]] = 1
            if rng.random() < 0.5:
                gate = 1 - gate
            out = out * (0.03 + 0.97 * gate)
        return out

    def one_noise(self, kind, count):
        """`count` samples of the noise named `kind`."""
        return self.babble(count) if kind == "babble" else noise.KINDS[kind](count, self.rng)

    def babble(self, count):
        """Six to fourteen voices at once in a room: a crowd of which no word can be told."""
        rng = self.rng
        out = np.zeros(count, np.float32)
        for _ in range(rng.integers(6, 15)):
            crowd = np.concatenate([pick(self.utterances, rng)[1] for _ in range(3)])
            out += rng.uniform(0.5, 1) * np.roll(np.resize(crowd, count), int(rng.integers(count)))
        return noise.unit(reverberate(out, rng))


def active_rms(samples, active):
    """RMS over the active quarters; 1 without any."""
    if not active.any():
        return 1.0
    quarters = samples[:len(active) * QUARTER].reshape(-1, QUARTER)[active]
    return float(np.sqrt(np.mean(np.square(quarters)))) + 1e-9


def equalise(samples, rng):
    """A random smooth frequency response, sometimes with a band limit as of a telephone."""
    hertz = np.fft.rfftfreq(len(samples), 1 / RATE)
    at = np.log(np.array([30, 120, 300, 800, 2000, 4500, 8000.0]))
    decibels = np.interp(np.log(np.maximum(hertz, 1)), at, rng.normal(0, 4, len(at)))
    if rng.random() < 0.4:
        decibels -= 24 * np.maximum(0, np.log2(rng.uniform(60, 320) / np.maximum(hertz, 1)))
    if rng.random() < 0.35:
        decibels -= 36 * np.maximum(0, np.log2(np.maximum(hertz, 1) / rng.uniform(3000, 7500)))
    response = 10 ** (np.maximum(decibels, -80) / 20)
    return np.fft.irfft(np.fft.rfft(samples) * response, len(samples)).astype(np.float32)


def reverberate(samples, rng):
    """A small room: the direct sound, then noise that decays by 60 dB within 0.1 to 0.7 s."""
    decay = rng.uniform(0.1, 0.7)
    time = np.arange(int(RATE * decay)) / RATE
    tail = rng.standard_normal(len(time)) * 10 ** (-3 * time / decay)
    tail[:int(RATE * 0.002)] = 0
    tail *= 10 ** (-rng.uniform(0, 14) / 20) / np.sqrt(np.sum(np.square(tail)))
    tail[0] = 1
    return signal.oaconvolve(samples, tail)[:len(samples)].astype(np.float32)
