"""A real S3 speaker that checks keys (moto), the fault proxy in front of it, and what a test asks of them."""

import contextlib
import json
import os
import pathlib
import subprocess
import sys

import boto3
import botocore.config
import botocore.exceptions

import harness

BUCKET = "traces"
ADMIN = [{"Effect": "Allow", "Action": ["s3:*", "iam:*", "sts:*"], "Resource": "*"}]
#: What each user may do. `writer` may not delete, which the API says is optional.
USERS = {
    "admin": ADMIN,
    "owner": ADMIN[:1],
    "writer": [{"Effect": "Allow", "Action": ["s3:PutObject"], "Resource": f"arn:aws:s3:::{BUCKET}/*"}],
    "reader": [{"Effect": "Allow", "Action": ["s3:GetObject", "s3:ListBucket"], "Resource": "*"}],
}
TRUST = {"Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "sts:AssumeRole"}]}
QUIET = botocore.config.Config(retries={"total_max_attempts": 1})


def policy(statements):
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


class Stand:
    """moto as a process: every request after the set-up has to carry a key it knows and a signature that fits."""

    def __init__(self, folder: pathlib.Path):
        self.address = harness.free_address()
        self.url = f"http://{self.address}"
        self.log = folder / "moto.log"
        host, port = self.address.split(":")
        # The set-up below: three calls per user, two for the role, one for the bucket. From then on keys are checked.
        environment = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(3 * len(USERS) + 2 + 1)}
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "moto.server", "-H", host, "-p", port]
            self.child = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            harness.until("moto to answer", self.answers, 30)
            self.set_up()
        except BaseException:
            self.stop()
            raise

    def answers(self):
        assert self.child.poll() is None, self.log.read_text()
        with contextlib.suppress(OSError), harness.urllib.request.urlopen(f"{self.url}/moto-api/", timeout=2):
            return True
        return None

    def set_up(self):
        anybody = {"access_key_id": "anybody", "secret_access_key": "anything"}
        iam = self.client("iam", anybody)
        self.keys = {}
        for name, statements in USERS.items():
            iam.create_user(UserName=name)
            made = iam.create_access_key(UserName=name)["AccessKey"]
            iam.put_user_policy(UserName=name, PolicyName="p", PolicyDocument=policy(statements))
            self.keys[name] = {
                "access_key_id": made["AccessKeyId"],
                "secret_access_key": made["SecretAccessKey"],
            }
        role = iam.create_role(RoleName="exporter", AssumeRolePolicyDocument=policy(TRUST["Statement"]))
        self.role = role["Role"]["Arn"]
        iam.put_role_policy(RoleName="exporter", PolicyName="p", PolicyDocument=policy(ADMIN))
        self.client("s3", anybody).create_bucket(Bucket=BUCKET)
        self.s3 = self.client("s3", self.keys["admin"])
        self.iam = self.client("iam", self.keys["admin"])

    def client(self, service, keys):
        return boto3.client(
            service,
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id=keys["access_key_id"],
            aws_secret_access_key=keys["secret_access_key"],
            aws_session_token=keys.get("session_token"),
            config=QUIET,
        )

    def new_keys(self, user="owner") -> dict:
        """Another key of that user, which a test may take away again."""
        made = self.iam.create_access_key(UserName=user)["AccessKey"]
        return {"access_key_id": made["AccessKeyId"], "secret_access_key": made["SecretAccessKey"]}

    def take_away(self, keys, user="owner"):
        self.iam.delete_access_key(UserName=user, AccessKeyId=keys["access_key_id"])

    def temporary_keys(self) -> dict:
        """Keys of a role, with a session token."""
        sts = self.client("sts", self.keys["admin"])
        made = sts.assume_role(RoleArn=self.role, RoleSessionName="test")["Credentials"]
        return {
            "access_key_id": made["AccessKeyId"],
            "secret_access_key": made["SecretAccessKey"],
            "session_token": made["SessionToken"],
        }

    def names(self, prefix, bucket=BUCKET) -> list[str]:
        return [found["Key"] for found in self.s3.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", [])]

    def open_uploads(self, prefix) -> list[str]:
        found = self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", [])
        return [upload["Key"] for upload in found if upload["Key"].startswith(prefix)]

    def download(self, prefix, folder: pathlib.Path) -> pathlib.Path:
        """Everything below `prefix`, as files below `folder` / `prefix`."""
        for name in self.names(prefix):
            local = folder / name
            local.parent.mkdir(parents=True, exist_ok=True)
            self.s3.download_file(BUCKET, name, str(local))
        return folder / prefix

    def stop(self):
        self.child.kill()
        self.child.wait()
