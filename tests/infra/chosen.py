"""A deployment with every option said, for the tests of what becomes of them."""

from zae_limiter import StackOptions, UsageWindow

ROLE = "arn:aws:iam::123456789012:role/mine"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:alarms"
BOUNDARY = "arn:aws:iam::123456789012:policy/bound"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/1234abcd-12ab"
PRINCIPALS = ("arn:aws:iam::123456789012:role/team-*", "arn:aws:iam::123456789012:user/ann")
CODE = {"CodeBucket": "bucket", "CodeKey": "package.zip", "CodeVersion": "3"}
"""No option, but said to the template by whoever deploys without us."""

EVERYTHING = StackOptions(
    snapshot_windows=(UsageWindow.DAILY, UsageWindow.MONTHLY),
    usage_retention_days=400,
    audit_retention_days=30,
    enable_aggregator=True,
    pitr_recovery_days=7,
    log_retention_days=14,
    lambda_timeout=120,
    lambda_memory=512,
    enable_alarms=True,
    alarm_sns_topic=TOPIC,
    lambda_duration_threshold_pct=50,
    permission_boundary=BOUNDARY,
    role_name_format="team-{}-x",
    policy_name_format="{}.policy",
    enable_audit_archival=True,
    audit_archive_glacier_days=10,
    enable_tracing=True,
    create_iam_roles=True,
    create_iam=True,
    aggregator_role_arn=ROLE,
    enable_deletion_protection=True,
    kms_key_arn=KEY,
    role_principals=PRINCIPALS,
    tags={"team": "a"},
)
