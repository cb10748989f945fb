"""From a description to a job on a cluster: sites, the script that is submitted, the launcher inside the job, and what became of it."""
