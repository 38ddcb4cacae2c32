"""Generated sounds that are not speech, each of unit RMS where it sounds.

Every generator takes (samples, rng) and returns f32 samples; `KINDS` lists them by name. Babble, the
only one made of speech, is in `mix.py`, which holds the utterances.
"""

import numpy as np
from scipy import signal

from speech import RATE


def unit(samples):
    """`samples` scaled to an RMS of 1; silence stays silence."""
    return (samples / (np.sqrt(np.mean(np.square(samples))) + 1e-9)).astype(np.float32)


def shaped(count, rng, gain):
    """Gaussian noise whose spectrum has the amplitude `gain(hertz)`."""
    spectrum = np.fft.rfft(rng.standard_normal(count))
    hertz = np.fft.rfftfreq(count, 1 / RATE)
    return unit(np.fft.irfft(spectrum * gain(np.maximum(hertz, 10.0)), count))


def white(count, rng):
    """Equal power per hertz."""
    return unit(rng.standard_normal(count))


def pink(count, rng):
    """Equal power per octave."""
    return shaped(count, rng, lambda hertz: hertz ** -0.5)


def brown(count, rng):
    """Six decibels less per octave: rumble."""
    return shaped(count, rng, lambda hertz: 1 / hertz)


def coloured(count, rng):
    """Noise with a random smooth spectrum: rooms, fans, streets."""
    at = np.log(np.array([10, 60, 150, 300, 600, 1200, 2400, 4800, 8000.0]))
    decibels = np.cumsum(rng.normal(-2, 6, len(at)))
    return shaped(count, rng, lambda hertz: 10 ** (np.interp(np.log(hertz), at, decibels) / 20))


def slow_envelope(count, rng, hertz):
    """A positive random envelope that moves at about `hertz`."""
    points = rng.standard_normal(max(4, int(count / RATE * hertz) + 4))
    curve = np.interp(np.linspace(0, len(points) - 1, count), np.arange(len(points)), points)
    return np.exp(curve)


def wind(count, rng):
    """Gusts: brown noise under a slow random envelope."""
    return unit(brown(count, rng) * slow_envelope(count, rng, rng.uniform(0.5, 3)) ** 1.5)


def modulated(count, rng):
    """Coloured noise that swells at the rates of syllables, without being speech."""
    time = np.arange(count) / RATE
    wave = np.sin(2 * np.pi * rng.uniform(0.5, 9) * time + rng.uniform(0, 6))
    sharp = np.clip(0.5 + wave * rng.uniform(0.5, 3), 0, 1)
    return unit(coloured(count, rng) * (rng.uniform(0, 0.2) + sharp))


def bursts(count, rng):
    """Irregular bursts of coloured noise, 30 to 400 ms long: steps, doors, paper."""
    envelope = np.zeros(count, np.float32)
    for start in rng.integers(0, count, rng.poisson(count / RATE * rng.uniform(0.5, 3)) + 1):
        length = min(count - start, int(RATE * rng.uniform(0.03, 0.4)))
        fall = np.exp(-np.linspace(0, rng.uniform(1, 6), length)) * min(1.0, rng.uniform(0.3, 1.5))
        rise = np.minimum(1, np.arange(length) / (RATE * rng.uniform(0.001, 0.03)))
        envelope[start:start + length] += fall * rise
    return unit(coloured(count, rng) * envelope)


def clicks(count, rng):
    """Keys and ticks: impulses that ring briefly."""
    impulses = np.zeros(count, np.float32)
    at = rng.integers(0, count, rng.poisson(count / RATE * rng.uniform(1, 12)) + 1)
    impulses[at] = rng.normal(0, 1, len(at))
    ring = int(RATE * 0.03)
    time = np.arange(ring) / RATE
    body = np.exp(-time / rng.uniform(0.0005, 0.006)) * np.cos(2 * np.pi * rng.uniform(500, 6000) * time)
    return unit(signal.fftconvolve(impulses, body)[:count])


def hum(count, rng):
    """Mains hum with its harmonics, and a little hiss."""
    time = np.arange(count) / RATE
    base = rng.choice([50.0, 60.0])
    tone = sum(rng.exponential() / order ** rng.uniform(0.3, 1.5)
               * np.sin(2 * np.pi * base * order * time + rng.uniform(0, 6)) for order in range(1, 16))
    return unit(unit(tone) + 0.03 * rng.standard_normal(count))


def engine(count, rng):
    """A harmonic drone of wandering pitch, 25 to 180 Hz."""
    drift = np.log(slow_envelope(count, rng, 1.0)) * rng.uniform(0.0, 0.08)
    phase = 2 * np.pi * np.cumsum(rng.uniform(25, 180) * np.exp(drift)) / RATE
    tone = sum(rng.exponential() / order ** 0.7 * np.sin(order * phase + rng.uniform(0, 6))
               for order in range(1, 25))
    return unit(unit(tone) + rng.uniform(0.05, 0.7) * coloured(count, rng))


def beeps(count, rng):
    """Telephone and alarm tones: one or two steady sines, on and off."""
    time = np.arange(count) / RATE
    tone = sum(np.sin(2 * np.pi * rng.uniform(300, 3500) * time) for _ in range(rng.integers(1, 3)))
    on = (time * rng.uniform(0.5, 5) + rng.uniform(0, 1)) % 1 < rng.uniform(0.2, 1.0)
    smooth = np.convolve(on, np.ones(80) / 80, mode="same")
    return unit(tone * smooth)


def chirps(count, rng):
    """Birds, sirens: tones that sweep."""
    time = np.arange(count) / RATE
    low, rate = rng.uniform(300, 3000), rng.uniform(0.2, 8)
    swing = rng.choice([np.sin, lambda x: signal.sawtooth(x, 0.5), signal.sawtooth])
    hertz = low * 2 ** (rng.uniform(0.1, 0.8) * (1 + swing(2 * np.pi * rate * time)))
    gate = slow_envelope(count, rng, 2) > rng.uniform(0.2, 1.0)
    smooth = np.convolve(gate, np.ones(160) / 160, mode="same")
    return unit(np.sin(2 * np.pi * np.cumsum(hertz) / RATE) * smooth)


def music(count, rng):
    """Notes with harmonics and a decay: a melody, sometimes chords, sometimes a beat."""
    out = np.zeros(count + RATE * 3, np.float32)
    beat = int(RATE * rng.uniform(0.12, 0.6))
    scale = 110 * 2 ** (np.array([0, 2, 4, 5, 7, 9, 11, 12, 14, 16, 19, 24]) / 12) * rng.uniform(0.7, 2)
    brightness, decay = rng.uniform(0.4, 2.0), rng.uniform(0.1, 1.0)
    time = np.arange(int(RATE * min(2.0, 2 * decay)) + 400) / RATE
    envelope = np.minimum(1, time / 0.008) * np.exp(-time / decay) * np.minimum(1, (len(time) - np.arange(len(time))) / 400)
    notes = [envelope * sum(order ** -brightness * np.sin(2 * np.pi * pitch * order * time) for order in range(1, 7))
             for pitch in scale]
    voices = int(rng.integers(1, 4))
    for start in range(0, count, beat):
        for note in rng.choice(len(notes), voices if rng.random() < 0.85 else 0, replace=False):
            out[start:start + len(time)] += (notes[note] * rng.uniform(0.3, 1)).astype(np.float32)
    if rng.random() < 0.4:
        out[:count] += 0.5 * float(np.abs(out).mean()) * bursts(count, rng)
    return unit(out[:count])


KINDS = {maker.__name__: maker for maker in
         [white, pink, brown, coloured, wind, modulated, bursts, clicks, hum, engine, beeps, chirps, music]}
