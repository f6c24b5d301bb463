"""Dawson's function and the log-uniform KL with many digits, from other formulas than the fast code's.

Kummer's and the hypergeometric function up to 400, optimally truncated asymptotic series (error e^−400) beyond.
"""

import mpmath as mp

DIGITS = 40


def _tail(terms, ratio):
    return mp.fsum(terms(k) * mp.fac2(2 * k - 1) * ratio**k for k in range(60))


@mp.workdps(DIGITS)
def dawson(x):
    x = mp.mpf(x)
    if abs(x) > 20:
        return _tail(lambda k: 1, 1 / (2 * x**2)) / (2 * x)
    return x * mp.hyp1f1(1, mp.mpf(3) / 2, -(x**2))


@mp.workdps(DIGITS)
def log_uniform_kl(u):
    u = mp.mpf(u)
    if u > 400:
        return (mp.log(4 * u) + mp.euler) / 2 - _tail(lambda k: mp.mpf(1) / (2 * k) if k else 0, 1 / (2 * u))
    return u * mp.hyp2f2(1, 1, mp.mpf(3) / 2, 2, -u)


@mp.workdps(DIGITS)
def log_uniform_slope(u):
    root = mp.sqrt(mp.mpf(u))
    return dawson(root) / root if u else mp.mpf(1)


@mp.workdps(DIGITS)
def log_uniform_curvature(u):
    u = mp.mpf(u)
    if u > 400:
        return -2 * _tail(lambda k: k + 1, 1 / (2 * u)) / (2 * u) ** 2
    return -mp.mpf(2) / 3 * mp.hyp1f1(2, mp.mpf(5) / 2, -u)


def largest_relative_error(actual, expected):
    """Largest |actual/expected − 1| over a tensor and a list of mpmath numbers; next to underflow relative to 1e-300."""
    with mp.workdps(DIGITS):
        pairs = zip(actual.detach().flatten().tolist(), expected, strict=True)
        return max(float(abs(mp.mpf(value) - truth) / max(abs(truth), mp.mpf("1e-300"))) for value, truth in pairs)
