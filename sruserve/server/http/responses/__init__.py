"""The schemas of the replies of tasks: they describe the API, and tests check replies by them."""
