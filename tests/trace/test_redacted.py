"""Secrets in command lines, and what only looks like one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rltrace.trace.redacted import REDACTED, redacted

R = REDACTED


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["--api-key", "abc"], ["--api-key", R]),
        (["--hf_token=xyz"], [f"--hf_token={R}"]),
        (["env", "WANDB_API_KEY=0123abc", "x"], ["env", f"WANDB_API_KEY={R}", "x"]),
        (["trainer.wandb_key=12ab", "+a.apiKey=b"], [f"trainer.wandb_key={R}", f"+a.apiKey={R}"]),
        (['{"api_key": "s,t", "n": 5}'], [f'{{"api_key": "{R}", "n": 5}}']),
        (["--db-pass", "p"], ["--db-pass", R]),
        (["--set=a.password=p w"], [f"--set=a.password={R} w"]),
        (["-c", "e['HF_TOKEN']='ab'; f(1)"], ["-c", f"e['HF_TOKEN']='{R}'; f(1)"]),
        (["https://me:pw@host/a"], [f"https://{R}@host/a"]),
        (["https://pat@host/a"], [f"https://{R}@host/a"]),
        (["s3://b/k?token=ab&n=1&sig=cd"], [f"s3://b/k?token={R}&n=1&sig={R}"]),
        (["Authorization: Bearer abcdefgh"], [f"Authorization: {R} {R}"]),
        (["hf_" + "a" * 30], [R]),
        (["x=sk-proj-" + "a" * 30 + ";"], [f"x={R};"]),
        (["AKIA" + "A" * 16, "ghp_" + "b" * 36], [R, R]),
        (["eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM.abc-_d"], [R]),
        (["a --password p --n 5"], [f"a --password {R} --n 5"]),
        (["a --api-key 'p w' --n 5"], [f"a --api-key '{R}' --n 5"]),
        (["PGPASSWORD=p psql"], [f"PGPASSWORD={R} psql"]),
        (["--OPENAIAPIKEY=p", "--jwt", "p"], [f"--OPENAIAPIKEY={R}", "--jwt", R]),
        (["a.password=p&q,r'"], [f"a.password={R}"]),
        (["+api_keys=[p,q]", "--api-keys=p,q"], [f"+api_keys={R}", f"--api-keys={R}"]),
        (['{"api_keys": ["p", "q"], "n": 5}'], [f'{{"api_keys": {R}, "n": 5}}']),
        (['{"auth": {"pass": "p"}, "n": 5}'], [f'{{"auth": {R}, "n": 5}}']),
        (['x \'{\\"api_key\\": \\"p\\"}\''], [f'x \'{{\\"api_key\\": \\"{R}\\"}}\'']),
        (["Authorization: Token abcdefgh"], [f"Authorization: {R} {R}"]),
        (["https://me:p@w@host/a@b"], [f"https://{R}@host/a@b"]),
        (["https://hooks.slack.com/services/T0/B0/abcdef"], [f"https://{R}"]),
        (["xai-" + "a" * 40, "lsv2_pt_" + "a" * 32], [R, R]),
        (["/bin/wandb", "login", "0" * 40], ["/bin/wandb", "login", R]),
        (["sh", "-c", f"wandb login {'0' * 40}; x"], ["sh", "-c", f"wandb login {R}; x"]),
        ([f"wandb.login(key='{'0' * 40}')"], [f"wandb.login(key='{R}')"]),
        (["sh", "-c", "a=1 HF_TOKEN=$'ab c'; x"], ["sh", "-c", f"a=1 HF_TOKEN={R}; x"]),
        (["sh", "-c", "PASSWORD=ab'c d'\"e\" x"], ["sh", "-c", f"PASSWORD={R} x"]),
        (["sh", "-c", "PASSWORD='a'\"'\"'b' x"], ["sh", "-c", f"PASSWORD='{R}' x"]),
        (["sh", "-c", 'TOKEN="a\\"b" x'], ["sh", "-c", f'TOKEN="{R}" x']),
        (["sh", "-c", "TOKEN=a\\ b x"], ["sh", "-c", f"TOKEN={R} x"]),
        (["sh", "-c", "TOKEN=$(echo ab) x"], ["sh", "-c", f"TOKEN={R} x"]),
        (["-c", "f('x?token=ab', 'n', 5)"], ["-c", f"f('x?token={R}', 'n', 5)"]),
        (["sh", "-c", "TOKEN=`echo ab` x"], ["sh", "-c", f"TOKEN={R} x"]),
        (["a --api-key \\\n  p --n 5"], [f"a --api-key \\\n  {R} --n 5"]),
        (["sh -c 'a --api_key=p' --name 'b c'"], [f"sh -c 'a --api_key={R}' --name 'b c'"]),
        (['{"my_password": "a\\"b", "n": 5}'], [f'{{"my_password": "{R}", "n": 5}}']),
        (["-c", 'api_key = f"""p q"""; f()'], ["-c", f"api_key = {R}; f()"]),
        (["apiKey => 'p'", "api_key := 'p'"], [f"apiKey => '{R}'", f"api_key := '{R}'"]),
        (["API_KEY_2=p", "PASSWORD1=p"], [f"API_KEY_2={R}", f"PASSWORD1={R}"]),
        (["--api-keys", "p", "q", "--n", "5"], ["--api-keys", R, R, "--n", "5"]),
        (["x api_keys=p,q y"], [f"x api_keys={R} y"]),
        (["--password=p w"], [f"--password={R}"]),
        (["https://b/k?Expires=1&Signature=ab%3D"], [f"https://b/k?Expires=1&Signature={R}"]),
        (["wandb", "login", "--relogin", "0" * 40], ["wandb", "login", "--relogin", R]),
        (
            ["wandb", "login", "--host", "https://x", "0" * 40],
            ["wandb", "login", "--host", "https://x", R],
        ),
        (
            ["sh", "-c", f"wandb login --host https://x {'0' * 40}; x"],
            ["sh", "-c", f"wandb login --host https://x {R}; x"],
        ),
        (["e2b_" + "0" * 40, "tvly-" + "a" * 32], [R, R]),
        (["-----BEGIN PGP PRIVATE KEY BLOCK-----\nMII"], [R]),
        (["-----BEGIN RSA PRIVATE KEY-----\nMII\n-----END RSA PRIVATE KEY-----"], [R]),
    ],
)
def test_what_looks_like_a_secret_is_left_out(words: list[str], shown: list[str]) -> None:
    assert redacted(words) == shown
    assert redacted(shown) == shown


@pytest.mark.parametrize(
    "words",
    [
        ["python", "-m", "train", "--max-tokens", "2048", "--eos_token", "</s>"],
        ["data.prompt_key=prompt", "reward.fn_key=truth", "--reward-fn-key", "ground_truth"],
        ["--token-level-loss", "true", "stop_token_ids=[1,2]", "pad_token=151643", "tokenizer=/a"],
        ["--use-auth", "false", "compass=4", "--pass-k", "8", "monkey=1", "key=3", "n_pass=2"],
        ["git@github.com:a/b", "http://host:80/@x", "s3://bucket/key", "C:/keys", "a:b"],
        ["--hf_token", "--resume", "auth=none", "--signature", "question -> answer"],
        ["sh", "-c", "train --max-tokens 5 --eos-token </s> --reward-fn-key gt --use-auth true x"],
        ["sh", "-c", "huggingface-cli login --token --resume; wandb login && train --n 5"],
        ["http://host?mail=me@example.org", "wandb", "login", "--relogin", "data.keys=[a,b]"],
        ["fw_bw_overlap=true", "msg.sg=1", "key-value=3", "tokens=[1,2]"],
        ["pass_1=0.5", "token_1=5"],
        ["--revision", "0123456789abcdef0123456789abcdef01234567"],
    ],
)
def test_what_a_job_needs_to_be_told_stays(words: list[str]) -> None:
    assert redacted(words) == words


def test_a_long_word_takes_no_longer_than_its_length() -> None:
    """An argument may have 128 KiB: work that grows with its square would take minutes."""
    parts = ["a", "a.", "://", "key=", "token=", "token=1", "sk-", "-----BEGIN ", " ", "'"]
    parts += ["--key ", "--password ", "password=[", "password={", "token=\\\\", "\\\\", "auth "]
    parts += ["wandb login ", "wandb ", "authorization: ", "http://a", "@", "SG.a", "a --token "]
    parts += ["token=$(", "token=`", "token='a", "token='a'", 'token="a', "token=$'a", "token=\\\n"]
    parts += ["?Signature=", "token=>", "wandb login --a ", "api_keys=a,", "--token \\\n"]
    code = f"""
from rltrace.trace.redacted import redacted
for part in {parts!r}:
    redacted([part * (130_000 // len(part)) + "key"])
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
