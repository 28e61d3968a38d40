-- +goose Up

-- fsck compares the active policy with the activations.
GRANT SELECT ON active_policy, policy_activation TO evalonce_sweeper;
