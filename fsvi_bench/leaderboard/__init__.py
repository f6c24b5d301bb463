"""Submissions, their verification, ranking, and the site that shows it."""
