"""The stack around a table: what is deployed, with which options, and the package of its function.

Reading order: ``cfn_template.yaml`` (the stack itself), ``template`` (options as its parameters, names and
tags), ``lambda_builder`` (the code of the aggregator). They touch nothing; ``stack_manager`` deploys and
``discovery`` finds what is deployed.
"""
