"""Methods of 2018 to 2026 where the exact posterior is known: what each one's objective asks for."""
