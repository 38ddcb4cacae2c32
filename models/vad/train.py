"""Trains the voice-activity model from nothing but synthetic sound, and writes `vad.onnx`.

    train.py [--out FILE] [--utterances N] [--streams N] [--epochs N]

Speaks the sentences, mixes the streams, computes their features once, and trains on one thread.
"""

import argparse
import pathlib
import time

import numpy as np
import onnx
import torch

import mix
import speech
import vad

HERE = pathlib.Path(__file__).parent
SEED = 1
TURNS = 375
"""Turns of a training stream: 12 s."""
BATCH = 32
LEARNING_RATE = 4e-3


def training_streams(count, utterances, rng):
    """`count` streams as f16 features `[count, TURNS, BANDS, STEPS]` and labels `[count, TURNS]`."""
    mixer = mix.Mixer(utterances, rng)
    inputs = np.empty((count, TURNS, vad.BANDS, vad.STEPS), np.float16)
    labels = np.empty((count, TURNS), np.float32)
    for index in range(count):
        snr = None if rng.random() < 0.15 else rng.uniform(-5, 30)
        pcm, labels[index] = mixer.stream(TURNS, snr, rng.uniform(-40, 0), speech=rng.random() < 0.9)
        inputs[index] = vad.features(pcm)
    return inputs, labels


def train(inputs, labels, epochs, rng):
    """The trained network: Adam, one cosine from warm to cold, cross-entropy on every frame."""
    torch.manual_seed(SEED)
    sample = inputs[:200].astype(np.float32)
    net = vad.Net(sample.mean(axis=(0, 1, 3)), sample.std(axis=(0, 1, 3)))
    batches = len(inputs) // BATCH
    optimizer = torch.optim.AdamW(net.parameters(), LEARNING_RATE, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=epochs * batches, pct_start=0.1)
    for epoch in range(epochs):
        order, losses, began = rng.permutation(len(inputs)), [], time.time()
        for batch in range(batches):
            rows = np.sort(order[batch * BATCH:(batch + 1) * BATCH])
            x = torch.from_numpy(inputs[rows].astype(np.float32))
            # A band's gain is a level and a microphone: cheap variety on top of the mixing.
            x += torch.from_numpy(rng.normal(0, 0.3, (BATCH, 1, vad.BANDS, 1)).astype(np.float32))
            loss = torch.nn.functional.binary_cross_entropy_with_logits(net(x), torch.from_numpy(labels[rows]))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1}/{epochs}: loss {np.mean(losses):.4f}, {time.time() - began:.0f} s", flush=True)
    return net


def main():
    arguments = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    arguments.add_argument("--out", default=HERE / "vad.onnx")
    arguments.add_argument("--utterances", type=int, default=2400)
    arguments.add_argument("--streams", type=int, default=2600)
    arguments.add_argument("--epochs", type=int, default=14)
    arguments = arguments.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    rng = np.random.default_rng(SEED)

    began = time.time()
    utterances = speech.utterances("train", arguments.utterances, rng)
    seconds = sum(len(samples) for _, samples in utterances) / speech.RATE
    print(f"spoke {len(utterances)} utterances, {seconds / 60:.0f} minutes, in {time.time() - began:.0f} s", flush=True)
    began = time.time()
    inputs, labels = training_streams(arguments.streams, utterances, rng)
    hours = labels.size * speech.FRAME / speech.RATE / 3600
    print(f"mixed {len(inputs)} streams, {hours:.1f} h, {labels.mean():.0%} speech, in {time.time() - began:.0f} s", flush=True)
    net = train(inputs, labels, arguments.epochs, rng)
    onnx.save(vad.to_onnx(net), arguments.out)
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
