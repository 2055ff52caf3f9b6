"""Derives the layer profiles of VGG16, ResNet-50 and BERT-large from the published architectures.

python experiments/replay/profiles.py            writes python/gradwire/plan/profiles/*.json
python experiments/replay/profiles.py --check    says whether those are what the derivation gives

A layer is what backward() finishes at once: a convolution or a linear map with the normalisation behind it. Elements
are its parameters. The step's compute time is batch / images_per_second, measured by others on one device; it is
shared out by multiply-accumulates, a third of it forward and two thirds backward (backward computes two products where
forward computes one: the gradients of the input and of the weights).

What this leaves out: layers without arithmetic of note (normalisation, pooling, softmax) take time on a real device,
small layers run below its peak, and the first layer needs no gradient of its input. So the total is measured, the
parameter counts are exact, and the shares are a model.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from gradwire.plan import layer_profile
from gradwire.plan.layer_profile import Layer, Profile, load, text_of, validate

__all__ = ["FOLDER", "MODELS", "Layer", "Profile", "load", "text_of", "validate"]

FOLDER = Path(layer_profile.__file__).with_name("profiles")
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class Product:
    """A layer as the architecture has it: parameters, and multiply-accumulates of forward() for one image."""

    name: str
    elements: int
    macs: int


def share_out(
    name: str, source: str, batch: int, images_per_second: float, products: list[Product]
) -> Profile:
    """Shares batch / images_per_second over the layers by their multiply-accumulates."""
    macs = sum(product.macs for product in products)
    step = batch / images_per_second
    layers = []
    for product in products:
        seconds = step * product.macs / macs
        forward = round(seconds * FORWARD_SHARE, 9)
        layers.append(Layer(product.name, product.elements, forward, round(seconds - forward, 9)))
    profile = Profile(name, source, batch, images_per_second, tuple(layers))
    validate(profile)
    return profile


def vgg16() -> Profile:
    """Configuration D at 224 x 224: 13 convolutions of 3 x 3 with biases, 3 linear layers.

    Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2015, table 1.
    """
    products = []
    channels, side = 3, 224
    for block, (count, width) in enumerate([(2, 64), (2, 128), (3, 256), (3, 512), (3, 512)], 1):
        for index in range(1, count + 1):
            weights = 9 * channels * width
            products.append(Product(f"conv{block}_{index}", weights + width, weights * side * side))
            channels = width
        side //= 2
    for name, inputs, outputs in [("fc6", 7 * 7 * 512, 4096), ("fc7", 4096, 4096), ("fc8", 4096, 1000)]:
        products.append(Product(name, inputs * outputs + outputs, inputs * outputs))
    source = (
        "architecture: Simonyan and Zisserman 2015, configuration D, 224x224; time: 29.3 images/s on one node at batch "
        "64 (27.76 images/s per node at 94.74 % efficiency), shared out by multiply-accumulates"
    )
    return share_out("vgg16", source, 64, 29.3, products)


def resnet50() -> Profile:
    """ResNet-50 v1.5 (the stride is in the 3 x 3 convolution) at 224 x 224; normalisation counts to its convolution.

    Source: He et al., "Deep residual learning for image recognition", 2016, table 1.
    """
    products = [_convolution("conv1", 3, 64, 7, 112)]
    channels, side = 64, 56
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)], 2):
        for unit in range(1, count + 1):
            outputs = 4 * width
            after = side // 2 if unit == 1 and stage > 2 else side
            name = f"conv{stage}_{unit}"
            products.append(_convolution(f"{name}_1x1a", channels, width, 1, side))
            products.append(_convolution(f"{name}_3x3", width, width, 3, after))
            products.append(_convolution(f"{name}_1x1b", width, outputs, 1, after))
            if unit == 1:
                products.append(_convolution(f"{name}_shortcut", channels, outputs, 1, after))
            channels, side = outputs, after
    products.append(Product("fc", 2048 * 1000 + 1000, 2048 * 1000))
    source = (
        "architecture: He et al. 2016, v1.5, 224x224; time: 703 images/s on one V100 at batch 256 (45 000 images/s on "
        "64), shared out by multiply-accumulates"
    )
    return share_out("resnet50", source, 256, 703.0, products)


def _convolution(name: str, inputs: int, outputs: int, kernel: int, side: int) -> Product:
    weights = inputs * outputs * kernel * kernel
    return Product(name, weights + 2 * outputs, weights * side * side)  # scale and shift of its normalisation


def bert_large() -> Profile:
    """BERT-large, uncased, with its two pretraining heads; the output embedding is the input's, so its gradient is
    complete only at the end of backward().

    Source: Devlin et al., "BERT", 2019, section 3; vocabulary 30 522, sequences of 512, 80 predictions each.
    """
    hidden, wide, tokens, vocabulary, predictions = 1024, 4096, 512, 30_522, 80
    norm = 2 * hidden
    embeddings = (vocabulary + 512 + 2) * hidden + norm
    products = [Product("embeddings", embeddings, 0)]  # looked up, not multiplied
    square = hidden * hidden
    for block in range(24):
        name = f"block{block}"
        for part in ("query", "key", "value"):
            products.append(Product(f"{name}_{part}", square + hidden, square * tokens))
        # The scores and their sums, 2 tokens^2 hidden, come just before the projection.
        attended = 2 * tokens * tokens * hidden
        products.append(Product(f"{name}_project", square + hidden + norm, square * tokens + attended))
        products.append(Product(f"{name}_widen", hidden * wide + wide, hidden * wide * tokens))
        products.append(Product(f"{name}_narrow", wide * hidden + hidden + norm, wide * hidden * tokens))
    products.append(Product("pooler", square + hidden, square))
    # Predictions of masked tokens: a dense layer with normalisation, and the vocabulary's scores, whose weights are
    # the embeddings' and whose bias is its own.
    scores = hidden * vocabulary * predictions
    products.append(
        Product("predictions", square + hidden + norm + vocabulary, square * predictions + scores)
    )
    products.append(Product("next_sentence", 2 * hidden + 2, 2 * hidden))
    source = (
        "architecture: Devlin et al. 2019, 24 blocks of 1024; time: 26.04 sentences/s on one V100 32 GB at batch 14 in "
        "mixed precision (NVIDIA DeepLearningExamples, BERT for PyTorch, July 2019), sequences of 512 assumed (21 % of "
        "the device's peak; with 128, 5 %); gradients counted as float32; shared out by multiply-accumulates"
    )
    # Appendix A.2: Adam.
    return replace(share_out("bert_large", source, 14, 26.04, products), optimizer="Adam", is_like_adam=True)


def gpt_products(hidden: int, blocks: int, tokens: int, vocabulary: int) -> list[Product]:
    """Returns a transformer's layers as experiments/gpu/transformer.py has them. Its output embedding is the input's.

    Source: Radford et al., "Language models are unsupervised multitask learners", 2019, section 2.3.
    """
    norm, square, wide = 2 * hidden, hidden * hidden, 4 * hidden
    products = [Product("embeddings", (vocabulary + tokens) * hidden, 0)]  # looked up, not multiplied
    for block in range(blocks):
        name = f"block{block}"
        attended = 2 * tokens * tokens * hidden  # the scores and their sums, just before the projection
        products.append(Product(f"{name}_qkv", 3 * square + 3 * hidden + norm, 3 * square * tokens))
        products.append(Product(f"{name}_project", square + hidden, square * tokens + attended))
        products.append(Product(f"{name}_widen", hidden * wide + wide + norm, hidden * wide * tokens))
        products.append(Product(f"{name}_narrow", wide * hidden + hidden, wide * hidden * tokens))
    products.append(Product("head", norm, hidden * vocabulary * tokens))  # its weights are the embeddings'
    return products


def gpt2_124m() -> Profile:
    """GPT-2 of 124 million parameters with sequences of 512, and AdamW."""
    source = (
        "architecture: Radford et al. 2019, 12 blocks of 768; time: 60 ms a step of 8 sequences of 512 in float32 on "
        "one H100 (experiments/gpu), shared out by multiply-accumulates"
    )
    profile = share_out("gpt2_124m", source, 8, 8 / 0.060, gpt_products(768, 12, 512, 50_304))
    return replace(profile, optimizer="AdamW", is_like_adam=True)


MODELS = {"vgg16": vgg16, "resnet50": resnet50, "bert_large": bert_large, "gpt2_124m": gpt2_124m}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a file differs")
    check = parser.parse_args().check
    differs = []
    FOLDER.mkdir(exist_ok=True)
    for name, derive in MODELS.items():
        profile, path = derive(), FOLDER / f"{name}.json"
        if not check:
            path.write_text(text_of(profile), encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text_of(profile):
            differs.append(path.name)
        print(
            f"{name}: {len(profile.layers)} layers, {profile.elements} parameters, "
            f"{profile.compute_seconds:.4f} s a step of {profile.batch}"
        )
    if differs:
        print(
            f"not what the derivation gives: {', '.join(differs)}; run without --check to write them",
            file=sys.stderr,
        )
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
