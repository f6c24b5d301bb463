"use strict";
// Student's t distribution, and from it what fsvi_bench/statistics/resampled_t.py and multiple.py compute.
const fsviStatistics = (() => {
  // Lanczos's approximation, g = 7, nine terms (Press et al. 2007, Numerical Recipes, section 6.1).
  const LANCZOS = [
    0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313, -176.61502916214059,
    12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6, 1.5056327351493116e-7,
  ];
  const logGamma = (x) => {
    const z = x - 1;
    const t = z + 7.5;
    let sum = LANCZOS[0];
    for (let i = 1; i < 9; i += 1) sum += LANCZOS[i] / (z + i);
    return 0.5 * Math.log(2 * Math.PI) + (z + 0.5) * Math.log(t) - t + Math.log(sum);
  };

  // Lentz's continued fraction of the incomplete beta function, which converges fast for x < (a + 1)/(a + b + 2).
  const fraction = (a, b, x) => {
    const away = (value) => (Math.abs(value) < 1e-300 ? 1e-300 : value);
    let c = 1;
    let d = 1 / away(1 - ((a + b) * x) / (a + 1));
    let h = d;
    for (let m = 1; m < 500; m += 1) {
      const even = (m * (b - m) * x) / ((a + 2 * m - 1) * (a + 2 * m));
      d = 1 / away(1 + even * d);
      c = away(1 + even / c);
      h *= d * c;
      const odd = (-(a + m) * (a + b + m) * x) / ((a + 2 * m) * (a + 2 * m + 1));
      d = 1 / away(1 + odd * d);
      c = away(1 + odd / c);
      h *= d * c;
      if (Math.abs(d * c - 1) < 1e-15) break;
    }
    return h;
  };
  const regularisedBeta = (a, b, x) => {
    if (x <= 0) return 0;
    if (x >= 1) return 1;
    const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log1p(-x));
    return x < (a + 1) / (a + b + 2) ? (front * fraction(a, b, x)) / a : 1 - (front * fraction(b, a, 1 - x)) / b;
  };

  // P(|T| > |t|).
  const twoSided = (t, degrees) => regularisedBeta(degrees / 2, 0.5, degrees / (degrees + t * t));
  // The t that |T| exceeds with probability 1 - level.
  const critical = (level, degrees) => {
    let low = 0;
    let high = 1;
    while (twoSided(high, degrees) > 1 - level) high *= 2;
    for (let i = 0; i < 200 && high - low > 1e-15 * high; i += 1) {
      const middle = 0.5 * (low + high);
      if (twoSided(middle, degrees) > 1 - level) low = middle;
      else high = middle;
    }
    return 0.5 * (low + high);
  };

  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const standardError = (values, ratio) => {
    if (values.every((value) => value === values[0])) return 0;
    const middle = mean(values);
    const squares = values.reduce((sum, value) => sum + (value - middle) ** 2, 0);
    return Math.sqrt(squares / (values.length - 1)) * Math.sqrt(1 / values.length + ratio);
  };
  const interval = (values, ratio, level = 0.95) => {
    if (values.length < 2 || !values.every(Number.isFinite)) return null;
    const half = critical(level, values.length - 1) * standardError(values, ratio);
    return [mean(values) - half, mean(values) + half];
  };

  // Where one of two scores is infinite, the limit in which these differences grow together.
  const tested = (differences) => {
    const infinite = differences.some((value) => !Number.isFinite(value));
    return infinite ? differences.map((v) => (Number.isFinite(v) ? 0 : Math.sign(v))) : differences;
  };
  const pairedTest = (differences, ratio) => {
    const row = tested(differences);
    if (row.length === 1 || row.every((value) => value === 0)) return 1;
    const error = standardError(row, ratio);
    return error === 0 ? 0 : twoSided(mean(row) / error, row.length - 1);
  };

  const holm = (values) => {
    const order = values.map((_, place) => place).sort((a, b) => values[a] - values[b]);
    const adjusted = [];
    let least = 0;
    order.forEach((place, i) => {
      least = Math.max(least, values[place] * (values.length - i));
      adjusted[place] = Math.min(1, least);
    });
    return adjusted;
  };

  return { mean, interval, tested, pairedTest, holm, twoSided, critical };
})();
