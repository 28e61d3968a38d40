module github.com/evalonce/evalonce/services/evaluator-worker

go 1.26.0
