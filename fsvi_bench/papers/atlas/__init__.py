"""Methods of 2018 to 2026 where the exact posterior is known: the optimum of each one's objective."""
