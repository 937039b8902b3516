"""Train and evaluate from a config, with debuggers looking on."""
