module github.com/evalonce/evalonce/ci

go 1.26

require github.com/google/licensecheck v0.3.1
