"""Derivatives of elementwise rows of the op table, for define_op(): one line a function, in the language of the table.

`a`, `b`, `c`, ... are the operands, `y` is the result and `g` the gradient that comes in; there is an expression for each operand, or None
where that is 0. Operands behind the last expression are parameters by habit: one that is no number is differentiated through the row's
own expression. At kinks and poles they are what PyTorch's derivatives.yaml says: half for each of two equal operands of maximum,
0 for abs at 0 and for relu at 0. A row that is not here and has an expression has the derivative of its expression; without either it has
none.
"""

_HALVES = ("where(a == b, g / 2, where({}, 0, g))", "where(a == b, g / 2, where({}, g, 0))")
_STEPS = (
    "eq ne lt le gt ge signbit isnan isinf isposinf isneginf logical_and logical_or logical_xor logical_not bitwise_and "
    "bitwise_or bitwise_xor bitwise_not floor ceil trunc round sign div_floor div_trunc heaviside gcd lcm euclid "
    "wrap_index join_index"
)

DERIVATIVES = {
    **{name: (None, None, None, None) for name in _STEPS.split()},
    # arithmetic
    "add": ("g", "g"),
    "sub": ("g", "-g"),
    "rsub": ("-g", "g"),
    "mul": ("g * b", "g * a"),
    "div": ("g / b", "-g * (y / b)"),
    "neg": ("-g",),
    "square": ("g * (2 * a)",),
    "reciprocal": ("-g * (y * y)",),
    "remainder": ("g", "-g * floor(a / b)"),
    "fmod": ("g", "-g * trunc(a / b)"),
    "frac": ("g",),
    "abs": ("g * sign(a)",),
    "copysign": ("where(a == 0, 0, g * (y / a))", None),
    "maximum": tuple(half.format("a < b") for half in _HALVES),
    "minimum": tuple(half.format("a > b") for half in _HALVES),
    "fmax": ("where((a >= b) | (b != b), g, 0)", "where((a >= b) | (b != b), 0, g)"),
    "fmin": ("where((a <= b) | (b != b), g, 0)", "where((a <= b) | (b != b), 0, g)"),
    "clamp": (
        "where((a >= b) & (a <= c), g, 0)",
        "where((a < b) & (b < c), g, 0)",
        "where((a > c) | (b > c), g, 0)",
    ),
    "where": (None, "where(a, g, 0)", "where(a, 0, g)"),
    "nan_to_num": ("where((a != a) | (a == inf) | (a == -inf), 0, g)",),
    # powers, exponentials, logarithms
    "sqrt": ("g / (2 * y)",),
    "rsqrt": ("-0.5 * g * (y * y * y)",),
    "pow": (
        "where(b == 0, 0, g * (b * pow(a, b - 1)))",
        "where((a == 0) & (b >= 0), 0, g * (y * log(a)))",
    ),
    "exp": ("g * y",),
    "exp2": ("g * y * 0.69314718055994530942",),
    "expm1": ("g * (y + 1)",),
    "log": ("g / a",),
    "log2": ("g / (a * 0.69314718055994530942)",),
    "log10": ("g / (a * 2.30258509299404568402)",),
    "log1p": ("g / (a + 1)",),
    "logaddexp": ("g / (1 + exp(b - a))", "g / (1 + exp(a - b))"),
    "logaddexp2": ("g / (1 + exp2(b - a))", "g / (1 + exp2(a - b))"),
    "xlogy": ("where((a == 0) & (b <= 0), 0, g * log(b))", "g * a / b"),
    "xlog1py": ("where((a == 0) & (b <= -1), 0, g * log1p(b))", "g * a / (b + 1)"),
    "hypot": ("g * (a / y)", "g * (b / y)"),
    "sigmoid": ("g * (1 - y) * y",),
    "tanh": ("g * (1 - y * y)",),
    "erf": ("g * (1.12837916709551257390 * exp(-(a * a)))",),
    "erfc": ("g * (-1.12837916709551257390 * exp(-(a * a)))",),
    # trigonometry
    "sin": ("g * cos(a)",),
    "cos": ("-g * sin(a)",),
    "tan": ("g * (1 + y * y)",),
    "asin": ("g * rsqrt(1 - a * a)",),
    "acos": ("-g * rsqrt(1 - a * a)",),
    "atan": ("g / (a * a + 1)",),
    "atan2": ("g * (b / (a * a + b * b))", "g * (-a / (a * a + b * b))"),
    "sinh": ("g * cosh(a)",),
    "cosh": ("g * sinh(a)",),
    "asinh": ("g * rsqrt(a * a + 1)",),
    "acosh": ("g * rsqrt(a * a - 1)",),
    "atanh": ("g / (1 - a * a)",),
    "sinc": (
        "where(a == 0, 0, g * ((cos(a * p) * p * a - sin(a * p)) / (p * a * a))) where p = 3.14159265358979323846",
    ),
    "angle": (None,),
    # activations
    "relu": ("where(y <= 0, 0, g)",),
    "relu6": ("hardtanh_backward(g, a, 0, 6)",),
    "hardtanh": ("hardtanh_backward(g, a, b, c)",),
    "threshold": ("threshold_backward(g, a, b)",),
    "leaky_relu": ("leaky_relu_backward(g, a, b)",),
    "elu": ("elu_backward(g, b, c, d, a)",),
    "silu": ("silu_backward(g, a)",),
    "gelu": ("gelu_backward(g, a)",),
    "gelu_tanh": ("gelu_tanh_backward(g, a)",),
    "mish": ("mish_backward(g, a)",),
    "softplus": ("softplus_backward(g, a, b, c)",),
    "hardswish": ("hardswish_backward(g, a)",),
    "hardsigmoid": ("hardsigmoid_backward(g, a)",),
    "hardshrink": ("shrink_backward(g, a, b)",),
    "softshrink": ("shrink_backward(g, a, b)",),
    "log_sigmoid": ("log_sigmoid_backward(g, a)",),
}
