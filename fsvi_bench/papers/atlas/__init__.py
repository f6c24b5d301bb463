"""Methods of 2011 to 2024 where the exact posterior is known: the optimum of each one's objective."""
