"""Hugging Face's Trainer with torch_compile=True: trains as without it, saves and loads."""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import flashover


def train(compiled: bool) -> tuple[float, float]:
    torch.manual_seed(0)
    small = BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, vocab_size=100,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    model = BertForSequenceClassification(small)
    data = [{"input_ids": torch.randint(0, 100, (16,)), "labels": torch.tensor(i % 2)} for i in range(32)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, torch_compile=compiled, per_device_train_batch_size=4, max_steps=8, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data)
        loss = trainer.train().training_loss
        evaluated = trainer.evaluate()["eval_loss"]
        trainer.save_model(f"{folder}/saved")
        loaded = BertForSequenceClassification.from_pretrained(f"{folder}/saved").state_dict()
        assert all(torch.equal(loaded[k], v) for k, v in model.state_dict().items())
    return loss, evaluated


if __name__ == "__main__":
    want = train(compiled=False)
    assert flashover.compile_stats()["graphs"] == 0
    with flashover.replacing_torch_compile():
        got = train(compiled=True)
    stats = flashover.compile_stats()
    assert torch.allclose(torch.tensor(got), torch.tensor(want), atol=1e-5), (got, want)
    assert stats["graphs"] > 0 and stats["graph_breaks"] == stats["eager_calls"] == 0, stats
