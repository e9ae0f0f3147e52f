"""The rollout proxy: agents talk to it, the policy engine answers, and every exchange is captured."""
