"""Sampling the posteriors of network tasks, and certifying the samples: needs the extra `reference` (JAX and friends).

Samplers see a `models.Model`: unknowns that are standard normal under the prior, a log likelihood, and functions drawn
given the unknowns. Each long run is made of pieces (a chain, a rung of a ladder, a particle run, a data set) that are
functions of a key and give small results of NumPy arrays. All numbers are float64.
"""

import jax

jax.config.update("jax_enable_x64", True)
