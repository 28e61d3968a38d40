module github.com/evalonce/evalonce/pkg

go 1.26.0
