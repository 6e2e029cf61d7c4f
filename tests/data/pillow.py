"""Expected pixels and sizes from Pillow and torchvision, for tests/image.rs and src/decode/image/fit.rs.

    python tests/data/pillow.py CROPS

writes tests/data/pillow/: inputs and expected rows as PNG, and cases.json, which names them, the arithmetic's results and the
versions. CROPS are those that `Image::random_resized_crop` draws for seed 3, epoch 0, as the test that asks for them
prints: x,y,width,height;x,y,width,height;...

Resizing, crops and their arithmetic are torchvision's own functions on Pillow images. LetterBox of Ultralytics 8.4.190 (auto=False,
center=True) is written out here from its formulas, resized by Pillow, whose bilinear filter has antialiasing, where
Ultralytics calls OpenCV, whose filter has none.
"""

import json
import pathlib
import sys

import numpy
import PIL
import torch
import torchvision
from PIL import Image
from torchvision.transforms import RandomResizedCrop
from torchvision.transforms import functional as F

OUT = pathlib.Path(__file__).parent / "pillow"
BILINEAR = F.InterpolationMode.BILINEAR


def photograph(width, height, seed):
    """Shades, hard edges and some noise."""
    rng = numpy.random.default_rng(seed)
    y, x = numpy.mgrid[0:height, 0:width].astype(float)
    planes = [
        128 + 100 * numpy.sin(x / 9 + y / 23),
        255 * ((x // 8 + y // 8) % 2),
        255 * (x + y) / max(width + height - 2, 1),
    ]
    pixels = numpy.stack(planes, axis=2)
    noisy = (x > width / 2)[..., None] * rng.normal(0, 25, pixels.shape)
    return Image.fromarray(numpy.clip(pixels + noisy, 0, 255).astype(numpy.uint8))


def letterbox(width, height, to_width, to_height, scale_up):
    """Ultralytics' LetterBox.get_params: the resized size, and left and top."""
    r = min(to_height / height, to_width / width)
    if not scale_up:
        r = min(r, 1.0)
    new = max(round(width * r), 1), max(round(height * r), 1)
    dw, dh = (to_width - new[0]) / 2, (to_height - new[1]) / 2
    return [*new, round(dw - 0.1), round(dh - 0.1)]


def resized_then_cropped(width, height, short, crop):
    """The size after Resize(short), and where CenterCrop(crop) starts in it: negative where it pads."""
    size = F.resize(torch.zeros(1, height, width, dtype=torch.uint8), short).shape
    y, x = torch.meshgrid(torch.arange(1, size[1] + 1), torch.arange(1, size[2] + 1), indexing="ij")
    rows, columns = (F.center_crop(v[None], list(crop))[0] for v in (y, x))
    row, column = (int(v) for v in rows.nonzero()[0])  # the first that is no padding
    top, left = int(rows[row, column]) - 1 - row, int(columns[row, column]) - 1 - column
    return [size[2], size[1], left, top]


def main():
    OUT.mkdir(exist_ok=True)
    crops = [[int(v) for v in crop.split(",")] for crop in sys.argv[1].split(";")]
    inputs = {
        f"{width}x{height}": photograph(width, height, seed)
        for seed, (width, height) in enumerate([(160, 120), (97, 61), (61, 97), (3, 2), (201, 17), (1, 1)])
    }
    for name, image in inputs.items():
        image.save(OUT / f"in_{name}.png", optimize=True)
    cases = []

    def case(kind, name, out, **more):
        number = len(cases)
        out.save(OUT / f"{number:02}.png", optimize=True)
        cases.append({"kind": kind, "input": f"in_{name}.png", "expected": f"{number:02}.png", **more})

    for name, image in inputs.items():
        for height, width in [(64, 64), (33, 47)]:
            case("stretch", name, F.resize(image, [height, width], BILINEAR))
            new_width, new_height, left, top = letterbox(*image.size, width, height, True)
            canvas = Image.new("RGB", (width, height), (114, 114, 114))
            canvas.paste(F.resize(image, [new_height, new_width], BILINEAR), (left, top))
            case("letterbox", name, canvas)
        if min(image.size) > 2:
            for short, crop in [(72, (64, 64)), (40, (33, 31)), (20, (24, 28))]:
                out = F.center_crop(F.resize(image, short, BILINEAR), list(crop))
                case("resize_then_center_crop", name, out, short=short)
    for index, (x, y, width, height) in enumerate(crops):
        out = F.resized_crop(inputs["160x120"], y, x, height, width, [48, 56], BILINEAR)
        case("random_resized_crop", "160x120", out, index=index, crop=[x, y, width, height])

    rng = numpy.random.default_rng(1)
    sizes = [[int(v) for v in rng.integers(1, 700, 2)] for _ in range(150)]
    sizes += [[500, 375], [1, 1], [1, 699], [699, 1], [640, 480], [1280, 720], [333, 251]]
    extreme = [[1000, 10], [10, 1000], [1, 300], [300, 1], [7, 211], [640, 9]]
    outs = [[int(v) for v in rng.integers(1, 300, 2)] for _ in sizes]
    arithmetic = {
        "resize_then_center_crop": [
            [*size, short, *crop, *resized_then_cropped(*size, short, crop[::-1])]
            for size, crop in zip(sizes, outs)
            if max(size) < 300 * min(size)
            for short in [int(rng.integers(1, 300))]
        ],
        "letterbox": [
            [*size, *out, int(up), *letterbox(*size, *out, up)]
            for size, out in zip(sizes, outs)
            for up in [bool(rng.integers(2))]
        ],
        "fallback": [
            [width, height, x, y, w, h]
            for width, height in extreme
            for y, x, h, w in [
                RandomResizedCrop.get_params(torch.zeros(1, height, width), [0.08, 1.0], [3 / 4, 4 / 3])
            ]
        ],
    }
    versions = {"Pillow": PIL.__version__, "torchvision": torchvision.__version__, "torch": torch.__version__}
    text = json.dumps({"versions": versions, "cases": cases, "arithmetic": arithmetic})
    (OUT / "cases.json").write_text(text.replace("}, {", "},\n{").replace("], [", "],\n[") + "\n")


main()
