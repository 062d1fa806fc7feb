"""Code generation: what a target's code generator is; emitters that several targets share."""
