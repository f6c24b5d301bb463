"""The search behind the default settings of trained methods: learning rate, schedule and number of steps."""
