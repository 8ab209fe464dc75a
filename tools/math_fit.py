"""Computes the coefficient tables of the vector functions and prints include/opaque/math_tables.h.

Two kinds of fit, both relative unless noted:

* f64 tables: Chebyshev interpolation in 200-bit arithmetic. Their error is far below half an f32
  ULP, so rounding the coefficients to f64 costs nothing that matters.
* f32 tables: Lawson's iteratively reweighted least squares, with the coefficients rounded to f32
  one after another, lowest power first, and the remaining ones refitted each time. Rounding all of
  them at the end would lose two to four bits.

Usage: python3 tools/math_fit.py > include/opaque/math_tables.h
"""

import math

import numpy as np
from mpmath import mp, mpf

mp.prec = 200


def chebyshev_points(low, high, count):
    k = np.arange(count)
    return 0.5 * (low + high) + 0.5 * (high - low) * np.cos(np.pi * (k + 0.5) / count)


def sampled(function, points):
    return np.array([float(function(mpf(float(t)))) for t in points])


def lawson(basis, target, iterations):
    """Weighted least squares whose weights converge to those of the minimax solution."""
    scale = np.abs(basis).max(0)
    basis = basis / scale
    weight = np.ones(len(target))
    best_error, best = math.inf, None
    for _ in range(iterations):
        root = np.sqrt(weight)
        solution = np.linalg.lstsq(basis * root[:, None], target * root, rcond=None)[0]
        error = np.abs(basis @ solution - target)
        if error.max() < best_error:
            best_error, best = error.max(), solution / scale
        weight *= error / error.max() + 1e-3
        weight /= weight.max()
    return best


def fit_f32(residual, weight, low, high, powers, centre=0.0, fixed=None, count=1200, iterations=50):
    """Fits sum c_p (x-centre)^p to residual; the error is max |weight * (fit - residual)|."""
    x = chebyshev_points(low, high, count)
    x = x[np.abs(x) > 1e-9]
    w = sampled(weight, x)
    rest = sampled(residual, x)
    found = dict(fixed or {})
    for p, value in found.items():
        rest = rest - value * (x - centre) ** p
    free = [p for p in powers if p not in found]
    while free:
        basis = np.stack([(x - centre) ** p for p in free], 1) * w[:, None]
        value = float(np.float32(lawson(basis, rest * w, iterations)[0]))
        p = free.pop(0)
        found[p] = value
        rest = rest - value * (x - centre) ** p
    return [found[p] for p in powers], float(np.abs(rest * w).max())


def fit_f64(function, low, high, terms):
    coefficients, error = mp.chebyfit(function, [mpf(low), mpf(high)], terms, error=True)
    middle = function(mpf(low + high) / 2)
    return [float(c) for c in reversed(coefficients)], float(error / abs(middle))


def literal(value, kind):
    """Shortest C hexadecimal literal."""
    if kind == "double":
        return f"{value.hex()}"
    mantissa, exponent = float(np.float32(value)).hex().split("p")
    return (
        f"{mantissa.rstrip('0').rstrip('.')}p{exponent}f"
        if "." in mantissa
        else f"{mantissa}p{exponent}f"
    )


def emit(name, kind, text, coefficients, error):
    print(f"/* {text}; error 2^{math.log2(error):.1f} */")
    print(f"static const {kind} {name}[{len(coefficients)}] = {{")
    for value in coefficients:
        print(f"    {literal(value, kind)},")
    print("};\n")


def centre_near(function, middle, width):
    """The float next to `middle` whose function value is nearest to a float: its rounding then costs nothing."""
    best = (math.inf, middle)
    for c in np.float32(np.linspace(middle - width, middle + width, 1500)):
        value = function(mpf(float(c)))
        best = min(best, (abs(float(value - float(np.float32(float(value))))), float(c)))
    return best[1]


def binade(value):
    """2^k <= value, so that an error divided by it is in proportion to the result's last place."""
    return mpf(2) ** mp.floor(mp.log(value, 2))


def float_bits(value):
    return int(np.float32(value).view(np.uint32))


def fit_packed(function, weight, low, high, centre, fixed):
    """Degree 6 with two coefficients in one float: the upper half of the last is the lower half of the one before.

    They are chosen first, and the others make up for most of their error.
    """
    x = chebyshev_points(low, high, 300)
    w = sampled(weight, x)
    fixed = dict(fixed)
    for p in (6, 5):
        rest = sampled(function, x) - sum(value * (x - centre) ** q for q, value in fixed.items())
        free = [q for q in range(7) if q not in fixed]
        basis = np.stack([(x - centre) ** q for q in free], 1) * w[:, None]
        wanted = lawson(basis, rest * w, 40)[free.index(p)]
        lower = float_bits(fixed[6]) >> 16 if p == 5 else 0
        nearest = [(float_bits(wanted) + step & 0xFFFF0000) | lower for step in (-65536, 0, 65536)]
        values = [float(np.uint32(bits).view(np.float32)) for bits in nearest]
        fixed[p] = min(values, key=lambda value: abs(value - wanted))
    return fit_f32(function, weight, low, high, range(7), centre, fixed, 300, 40)


def half_octave_table(function, scale, top):
    """Eight intervals of t: the half octaves of u = 2 + scale * t. Rows of degree 0 to 5, then the centres."""
    table = [[0.0] * 8 for _ in range(7)]
    worst = 0.0
    edges = [(2.0 ** (k // 2) * (2 + k % 2) - 2) / scale for k in range(8)] + [top]
    for k in range(8):
        low, high = edges[k], edges[k + 1]
        if k == 0:
            # About 0, with a relative error: zero and the smallest arguments come out right. Without degree 2 the sum of
            # degrees 1 and 2, which is made first, has no rounding error.
            centre = 0.0
            c, error = fit_packed(
                function, lambda t: 1 / function(t), 1e-6, high, centre, {0: 0.0, 2: 0.0}
            )
        else:
            centre = centre_near(function, (low + high) / 2, (high - low) / 100)
            constant = float(np.float32(float(function(mpf(centre)))))
            c, error = fit_packed(
                function, lambda t: 1 / binade(function(t)), low, high, centre, {0: constant}
            )
        worst = max(worst, error)
        for p, value in enumerate([*c[:6], centre]):
            table[p][k] = value
    return table, worst


def emit_half_octave_table(name, text, function, scale, top):
    table, worst = half_octave_table(function, scale, top)
    print(
        f"/* {text}; the lower half of degree 5 is the upper half of degree 6; the last row has the"
    )
    print(f"   centres; worst error 2^{math.log2(worst):.1f} */")
    print(f"#define {name}_SCALE {scale}f\n#define {name}_TOP {top}f")
    print(f"static const float {name}_TABLE[7][8] = {{")
    for row in table:
        print("    {" + ", ".join(literal(value, "float") for value in row) + "},")
    print("};\n")


def emit_two_over_pi():
    """2/pi * 2^(8g-150) mod 8 in four chunks of 24 bits, for each group g of eight exponents."""
    chunks = [[0.0] * 32 for _ in range(4)]
    mp.prec = 600
    for group in range(17, 32):
        rest = mp.fmod(2 / mp.pi * mpf(2) ** (8 * group - 150), 8)
        for i in range(4):
            unit = mpf(2) ** (-21 - 24 * i)
            chunk = mp.floor(rest / unit) * unit
            chunks[i][group] = float(chunk)
            rest -= chunk
    mp.prec = 200
    print(
        "/* 2/pi * 2^(8g-150) mod 8, g = biased exponent / 8, in four 24-bit chunks of units 2^-21,"
    )
    print("   2^-45, 2^-69, 2^-93. Groups below 17 never need it. */")
    print("static const float TWO_OVER_PI[4][32] = {")
    for row in chunks:
        print("    {")
        for i in range(0, 32, 4):
            print("        " + " ".join(f"{literal(v, 'float')}," for v in row[i : i + 4]))
        print("    },")
    print("};\n")


def scaled_erfc(x):
    return (1 + 2 * x) * mp.exp(x * x) * mp.erfc(x)


def sine():
    """The fit of sin, refined on the whole evaluation.

    Near pi/2 the argument r^2 hardly changes, so the kernel's rounding errors there are one
    systematic error. A random search over the last bits of the fitted coefficients, with the
    maximum ULP error of the f32 evaluation as the criterion, took it from 2.10 to 1.80.
    """
    refined = [
        "-0x1.555558p-3",
        "0x1.111144p-7",
        "-0x1.a023d4p-13",
        "0x1.72cd1ep-19",
        "-0x1.b6f26p-26",
    ]
    c = [float.fromhex(text) for text in refined]
    x = chebyshev_points(1e-3, math.pi / 2, 2000)
    exact = sampled(lambda t: mp.sin(t) / t - 1, x)
    error = sum(value * x ** (2 * i + 2) for i, value in enumerate(c)) - exact
    return c, float(np.abs(error / (exact + 1)).max())


def main():
    print("/* Generated by tools/math_fit.py; lowest power first. Do not edit. */")
    print("#ifndef OPAQUE_MATH_TABLES_H\n#define OPAQUE_MATH_TABLES_H\n")
    half = float(mp.log(2) / 2) * 1.0005

    emit(
        "EXP32",
        "float",
        "(exp(r) - 1 - r) / r^2 on +-ln2/2",
        *fit_f32(lambda t: mp.exp(t) - 1 - t, lambda t: mp.exp(-t), -half, half, range(2, 7)),
    )
    emit(
        "EXPM1_32",
        "float",
        "(expm1(r) - r) / r^2 on +-ln2/2, error relative to expm1",
        *fit_f32(
            lambda t: mp.expm1(t) - t, lambda t: 1 / abs(mp.expm1(t)), -half, half, range(2, 7)
        ),
    )
    emit(
        "EXP2_32",
        "float",
        "(2^f - 1) / f on +-1/2",
        *fit_f32(lambda t: mpf(2) ** t - 1, lambda t: mpf(2) ** -t, -0.5005, 0.5005, range(1, 7)),
    )
    emit(
        "LOG32",
        "float",
        "(log1p(r) - r + r^2/2) / r^3 on [-1/4, 1/2], error relative to log1p",
        *fit_f32(
            lambda t: mp.log1p(t) - t + t * t / 2,
            lambda t: 1 / abs(mp.log1p(t)),
            -0.25,
            0.5,
            range(3, 11),
        ),
    )
    emit("SIN32", "float", "(sin(r)/r - 1) / r^2 in powers of r^2, |r| <= pi/2", *sine())

    def root(f):
        return lambda s: f(mp.sqrt(s)) / mp.sqrt(s) if s > 1e-30 else mpf(1)

    emit(
        "EXPM1_64",
        "double",
        "expm1(r)/r on +-ln2/2",
        *fit_f64(lambda t: mp.expm1(t) / t if abs(t) > 1e-30 else mpf(1), -half, half, 8),
    )
    limit = (math.sqrt(2) - 1) / (math.sqrt(2) + 1)
    emit(
        "LOG64",
        "double",
        "2 atanh(s)/s in powers of s^2, |s| <= 0.1716",
        *fit_f64(lambda s: 2 * root(mp.atanh)(s), 0, limit * limit * 1.001, 6),
    )
    emit(
        "ATAN64",
        "double",
        "atan(t)/t in powers of t^2, |t| <= 1",
        *fit_f64(root(mp.atan), 0, 1, 12),
    )
    emit(
        "ASIN64",
        "double",
        "asin(t)/t in powers of t^2, |t| <= 1/2",
        *fit_f64(root(mp.asin), 0, 0.25, 8),
    )
    emit(
        "SIN64",
        "double",
        "sin(r)/r in powers of r^2, |r| <= pi/4",
        *fit_f64(root(mp.sin), 0, 0.618, 5),
    )
    emit(
        "COS64",
        "double",
        "cos(r) in powers of r^2, |r| <= pi/4",
        *fit_f64(lambda s: mp.cos(mp.sqrt(s)), 0, 0.618, 6),
    )
    emit(
        "ERFC64",
        "double",
        "(1+2x) exp(x^2) erfc(x) in powers of (x-3)/(x+3), x in [0, 10.2]",
        *fit_f64(
            lambda t: scaled_erfc(3 * (1 + t) / (1 - t)),
            -1,
            (10.2 - 3) / (10.2 + 3),
            13,
        ),
    )
    # Beyond `top` the result is 1: there the function is well inside the interval that rounds to it.
    emit_half_octave_table("TANH", "tanh(c + d) in powers of d", mp.tanh, 3.294, 9.1)
    emit_half_octave_table("ERF", "erf(c + d) in powers of d", mp.erf, 7.404, 4.05)
    emit_two_over_pi()
    print("#endif")


if __name__ == "__main__":
    main()
