"""Makes tests/cases/small: images of all kinds and, in NAME.rgb, what Pillow decodes them to; of one, its luma in NAME.l.

The files are committed; run this with Pillow 13.0 and simplejpeg 1.9, whose are the samplings that Pillow does not write, to make
them again.
"""

import io
import pathlib
import random
import struct

import numpy
import simplejpeg
from PIL import Image

here = pathlib.Path(__file__).parent / "small"
here.mkdir(exist_ok=True)
WIDTH, HEIGHT = 45, 37


def picture(width=WIDTH, height=HEIGHT):
    noise = random.Random(7)
    image = Image.new("RGB", (width, height))
    for y in range(height):
        for x in range(width):
            red, green, blue = 5 * x, 6 * y, 255 - 3 * x - 2 * y
            if (x - 20) ** 2 + (y - 18) ** 2 < 100:
                red, green, blue = 230, 200, 40
            image.putpixel((x, y), tuple(max(0, min(255, c + noise.randrange(-6, 7))) for c in (red, green, blue)))
    return image


def decoded(path):
    image = Image.open(path)
    image.seek(0)
    if image.mode == "I;16":
        wide = image.tobytes()
        low = bytes((v + 128) // 257 for (v,) in struct.iter_unpack("<H", wide))
        gray = Image.frombytes("L", image.size, low)
        return gray.convert("RGB").tobytes(), gray.tobytes()
    if image.mode in ("LA", "PA", "RGBA"):
        # Alpha dropped: the stored colours.
        gray = image.getchannel(0) if image.mode == "LA" else None
        rgb = gray.convert("RGB") if gray else image.convert("RGBA").convert("RGB")
    elif image.mode == "CMYK":
        inks = image.tobytes()
        product = lambda ink, k: ((255 - ink) * (255 - k) + 127) // 255
        data = bytes(product(inks[i + c], inks[i + 3]) for i in range(0, len(inks), 4) for c in range(3))
        rgb = Image.frombytes("RGB", image.size, data)
    elif image.mode == "P":
        rgb = image.convert("RGBA" if "transparency" in image.info else "RGB").convert("RGB")
    else:
        rgb = image.convert("RGB")
    return rgb.tobytes(), rgb.convert("L").tobytes()


rgb = picture()
alpha = Image.linear_gradient("L").resize(rgb.size)
rgba = rgb.copy()
rgba.putalpha(alpha)
turned = Image.Exif()
turned[0x0112] = 6
flat = Image.new("RGB", (64, 64), (200, 30, 90))



def segments(data):
    """The segments of a JPEG before its scan, and the scan's data."""
    at, found = 2, []
    while data[at + 1] != 0xDA:
        end = at + 2 + struct.unpack_from(">H", data, at + 2)[0]
        found.append(data[at:end])
        at = end
    return found, data[at + 2 + struct.unpack_from(">H", data, at + 2)[0] : -2]


def in_three_scans(path, image):
    """Y, Cb and Cr of a sequential file, each in a scan of its own."""
    planes = []
    for plane in image.convert("YCbCr").split():
        buffer = io.BytesIO()
        plane.save(buffer, "JPEG", quality=90)
        planes.append(segments(buffer.getvalue()))
    out = b"\xff\xd8"
    for segment in planes[0][0]:
        if segment[1] == 0xC0:
            size = struct.unpack_from(">BHH", segment, 4)
            parts = b"".join(bytes([i, 0x11, 0]) for i in (1, 2, 3))
            segment = b"\xff\xc0" + struct.pack(">HBHHB", 17, *size, 3) + parts
        out += segment
    for i, (_, data) in enumerate(planes):
        out += b"\xff\xda" + struct.pack(">HBBBBBB", 8, 1, i + 1, 0, 0, 63, 0) + data
    path.write_bytes(out + b"\xff\xd9")


for name, image, options in [
    ("444.jpg", rgb, dict(subsampling=0)),
    ("422.jpg", rgb, dict(subsampling=1)),
    ("420.jpg", rgb, dict(subsampling=2)),
    ("optimized.jpg", rgb, dict(optimize=True, quality=95)),
    ("rough.jpg", rgb, dict(quality=10)),
    ("restart.jpg", rgb, dict(subsampling=2, restart_marker_blocks=2)),
    ("restart_rows.jpg", picture(32, 160), dict(subsampling=0, restart_marker_rows=1)),
    ("progressive.jpg", rgb, dict(progressive=True, subsampling=2)),
    ("progressive_444.jpg", rgb, dict(progressive=True, subsampling=0, quality=95)),
    ("progressive_gray.jpg", rgb.convert("L"), dict(progressive=True)),
    ("progressive_restart.jpg", rgb, dict(progressive=True, restart_marker_blocks=3)),
    ("gray.jpg", rgb.convert("L"), {}),
    ("rgb.jpg", rgb, dict(keep_rgb=True)),
    ("cmyk.jpg", rgb.convert("CMYK"), {}),
    ("progressive_cmyk.jpg", rgb.convert("CMYK"), dict(progressive=True)),
    ("flat.jpg", flat, {}),
    ("flat_narrow.jpg", flat.crop((0, 0, 8, 64)), {}),
    ("flat_gray.jpg", flat.convert("L"), {}),
    ("one.jpg", rgb.crop((0, 0, 1, 1)), {}),
    ("profile.jpg", rgb, dict(icc_profile=b"no profile, but long" * 40)),
    ("440.jpg", rgb, dict(sampling="440")),
    ("411.jpg", rgb, dict(sampling="411")),
    ("scans.jpg", rgb, None),
    ("exif.png", rgb, dict(exif=turned)),
    ("exif.webp", rgb, dict(exif=turned, lossless=True)),
    ("rgb.png", rgb, {}),
    ("rgba.png", rgba, {}),
    ("gray.png", rgb.convert("L"), {}),
    ("gray_alpha.png", rgba.convert("LA"), {}),
    ("palette.png", rgb.quantize(40), {}),
    ("palette_2.png", rgb.quantize(4), dict(bits=2)),
    ("palette_1.png", rgb.quantize(2), dict(bits=1)),
    ("bits.png", rgb.convert("1"), {}),
    ("gray_16.png", Image.frombytes("I;16", (WIDTH, HEIGHT), random.Random(3).randbytes(2 * WIDTH * HEIGHT)), {}),
    ("profile.png", rgb, dict(icc_profile=b"no profile, but long" * 40)),
    ("lossy.webp", rgb, dict(quality=80)),
    ("lossless.webp", rgb, dict(lossless=True)),
    ("alpha.webp", rgba, dict(lossless=True, exact=True)),
    ("animated.webp", rgb, dict(save_all=True, append_images=[rgb.rotate(180)], lossless=True)),
    ("rgb.bmp", rgb, {}),
    ("gray.bmp", rgb.convert("L"), {}),
    ("palette.bmp", rgb.quantize(40), {}),
    ("bits.bmp", rgb.convert("1"), {}),
    ("still.gif", rgb.quantize(40), {}),
    ("animated.gif", rgb.quantize(40), dict(save_all=True, append_images=[rgb.rotate(180).quantize(40)])),
    ("interlaced.gif", rgb.quantize(16), dict(interlace=1)),
]:
    path = here / name
    if "sampling" in (options or {}):
        data = numpy.ascontiguousarray(numpy.array(image))
        path.write_bytes(simplejpeg.encode_jpeg(data, quality=90, colorspace="RGB", colorsubsampling=options["sampling"]))
    elif options is None:
        in_three_scans(path, image)
    else:
        image.save(path, **options)
    data, gray = decoded(path)
    (here / f"{name}.rgb").write_bytes(data)
    if name == "rgb.png":
        (here / f"{name}.l").write_bytes(gray)
