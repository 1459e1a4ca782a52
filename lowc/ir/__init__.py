"""The language between the stages, as frozen data: graphs, modules, kernels; their text, rules, meaning and rewriting."""
