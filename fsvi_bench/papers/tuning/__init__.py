"""The search for default settings of trained methods: learning rate, schedule and number of steps."""
