package diagnose

// lead is what helps a person where no rule knows the cause.
func (w *walk) lead(f *Finding) []Evidence { return f.Evidence() }
