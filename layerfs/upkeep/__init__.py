"""Upkeep: a store verified, repaired, weighed, packed anew, and rid of what nobody needs."""
