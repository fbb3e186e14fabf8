"""Graders as tasks give them."""

CHECK = {"type": "string_check", "name": "exact", "input": "{{sample.output_text}}", "reference": "{{item.answer}}", "operation": "eq"}
NEAR = {
    "type": "text_similarity", "name": "near", "input": "{{sample.output_text}}", "reference": "4", "evaluation_metric": "fuzzy_match",
}  # fmt: skip
MULTI = {"type": "multi", "name": "both", "graders": {"exact": CHECK, "near": NEAR}, "calculate_output": "0.8 * exact + 0.2 * near"}
